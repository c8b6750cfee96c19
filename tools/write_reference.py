"""Write docs/reference/settings.md and docs/reference/cli.md from what the program declares.

Run `uv run python tools/write_reference.py` after changing a setting or a command; a test says when.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from remuda.assembly.settings import CommonSettings, FrontendSettings, UpSettings, WorkerSettings
from remuda.cli.exits import MEANINGS
from remuda.cli.options import default_text, metavar
from remuda.cli.verbs import root
from remuda.core.settings import Described, described

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
# Defaults that depend on the machine.
DEFAULTS = {"data_dir": "`remuda` in the user's data folder, such as `~/.local/share/remuda`"}
SERVICES = ("up", "frontend", "worker", "join")
SHARED_BY_CLIENTS = frozenset({"url", "api_key", "ca", "data_dir", "as_json"})


def pages() -> Mapping[Path, str]:
    return {REFERENCE / "settings.md": settings_page(), REFERENCE / "cli.md": cli_page()}


# Settings


def settings_page() -> str:
    shared = set(CommonSettings.model_fields)
    of_one = {*FrontendSettings.model_fields, *WorkerSettings.model_fields}
    parts = [
        ("Every process", described(CommonSettings)),
        ("Frontends", (item for item in described(FrontendSettings) if item.field not in shared)),
        ("Workers", (item for item in described(WorkerSettings) if item.field not in shared)),
        ("`remuda up` alone", (item for item in described(UpSettings) if item.field not in of_one)),
    ]
    return "\n".join([SETTINGS_INTRODUCTION, *(line for part in parts for line in _settings_part(*part))])


SETTINGS_INTRODUCTION = """\
# Settings

A setting is taken from the first of these that has it:

1. the flag on the command line;
2. its `REMUDA_*` variable;
3. its `LOCALAI_*` variable, where there is one;
4. for a worker: what `remuda join` was told, kept in the data folder;
5. the config file;
6. the default.

A variable that is set but empty counts as not set. A value that cannot be read stops the start, and the
message names the variable and the accepted form. `remuda up` takes the settings of frontends and of workers.

The config file is TOML, one key per setting, named like the setting (dashes and underscores are the same).
It is the file that `--config` or `REMUDA_CONFIG` names, else `remuda/config.toml` in the user's config
folder, such as `~/.config/remuda/config.toml`. One file may serve all roles; a key that is no setting is
refused.

Secrets are better given by variable or file than as a flag. One given as a flag is moved out of the process
list at once; `-` in its place asks for it at the terminal, or reads a line of standard input.

`remuda config check` shows every setting, its value and its origin, and warns of `REMUDA_*` variables that
nothing reads.
"""


def _settings_part(title: str, items: Iterator[Described]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| setting | flag | variables | default | meaning |"
    yield "|---|---|---|---|---|"
    for item in items:
        flag = f"`{item.flag}`" if item.boolean else f"`{item.flag} {metavar(item)}`"
        variables = ", ".join(f"`{name}`" for name in (item.env, *item.setting.aliases))
        yield _row(f"`{item.field}`", flag, variables, _default(item), _meaning(item))
    yield ""


def _default(item: Described) -> str:
    if item.field in DEFAULTS:
        return DEFAULTS[item.field]
    if isinstance(item.info.default, bool):
        return "`true`" if item.info.default else "`false`"
    return f"`{text}`" if (text := default_text(item)) else ""


def _meaning(item: Described) -> str:
    setting = item.setting
    accepted = f" Accepted: {setting.accepted}." if setting.accepted else ""
    later = f" *No effect yet: for {setting.no_effect_yet}.*" if setting.no_effect_yet else ""
    return f"{setting.help}{accepted}{later}"


# Commands


def cli_page() -> str:
    parts = [CLI_INTRODUCTION, "| code | meaning |", "|---|---|"]
    parts += [_row(str(int(code)), meaning) for code, meaning in MEANINGS.items()]
    parts += ["", *_shared_options()]
    for name, command in root.commands.items():
        parts += _command(command, f"remuda {name}")
    return "\n".join(parts)


CLI_INTRODUCTION = """\
# Commands

Every command has `--help` with examples. Where `--json` is given, a command prints one JSON document, an
object; lists have a name in it, such as `{"nodes": [...]}`. Errors, too, are then one JSON document, on
standard error: `{"error": {"code", "message", "hint"}}`, with the codes of
[errors.md](errors.md), or `usage` for a command line that cannot be parsed. Commands without `--json` say
why they have none: services, whose log is JSON with `--log-format json`, and
`completion`, which prints a script.

Commands that talk to a frontend find it by `--url` and `--api-key`, else by `REMUDA_URL` and
`REMUDA_API_KEY`, else by what the frontend that runs on this machine left in its data folder. A node is named
by its name, its id, or the beginning of its id.

## Exit codes
"""


def _command(command: click.Command, path: str) -> Iterator[str]:
    with click.Context(command, info_name=path) as ctx:
        yield f"## {path}\n"
        yield f"{_paragraphs(command.help or '')}\n"
        if isinstance(command, click.Group):
            yield f"Usage: `{path} COMMAND`\n"
        else:
            usage = " ".join(command.collect_usage_pieces(ctx))
            yield f"Usage: `{path} {usage}`\n"
            yield from _options(command, path, ctx)
        yield from _examples(command.epilog or "")
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _command(child, f"{path} {name}")


def _options(command: click.Command, path: str, ctx: click.Context) -> Iterator[str]:
    options = [param for param in command.params if isinstance(param, click.Option)]
    if path.removeprefix("remuda ") in SERVICES:
        yield "Its options are the [settings](settings.md) of its role, and `--config FILE`.\n"
        options = [option for option in options if option.name == "service"]
    elif _is_client(command):
        options = [option for option in options if option.name not in SHARED_BY_CLIENTS]
    yield from _option_table(options, ctx)


def _shared_options() -> Iterator[str]:
    command = next(command for command in _all_commands(root) if _is_client(command))
    options = [param for param in command.params if isinstance(param, click.Option)]
    shared = [option for option in options if option.name in SHARED_BY_CLIENTS]
    yield "## Options of all commands that talk to a frontend\n"
    yield from _option_table(shared, click.Context(command))


def _option_table(options: Sequence[click.Option], ctx: click.Context) -> Iterator[str]:
    records = [record for option in options if (record := option.get_help_record(ctx))]
    if records:
        yield "| option | meaning |"
        yield "|---|---|"
        yield from (_row(f"`{name}`", meaning) for name, meaning in records)
        yield ""


def _is_client(command: click.Command) -> bool:
    return {param.name for param in command.params} >= SHARED_BY_CLIENTS


def _all_commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from _all_commands(child)


def _examples(epilog: str) -> Iterator[str]:
    lines = epilog.splitlines()[2:]  # After the mark and the heading.
    if lines:
        yield from ("```", *(line.strip() for line in lines), "```", "")


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)
        print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
