"""Settings on the command line: an option for each, made from its declaration, and where values come from:
flags, environment, what `remuda join` saved, the config file, defaults.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

import click
from platformdirs import user_config_path
from pydantic import create_model
from pydantic_core import PydanticUndefined

from remuda.assembly.settings import CommonSettings, FrontendSettings, UpSettings, WorkerSettings, forms
from remuda.cli.invocation import ProgramRole
from remuda.core import durations
from remuda.core.errors import Misconfigured
from remuda.core.settings import Described, ResolvedSettings, Settings, described, read_file, resolve
from remuda.core.settings import unknown_variables as unknown_among
from remuda.host.folder import DataFolder, read_json
from remuda.models import keep_alive

_METAVARS: Final = {
    forms.FILE: "PATH",
    forms.PORT: "PORT",
    forms.JSON: "JSON",
    durations.ACCEPTED: "DURATION",
    keep_alive.ACCEPTED: "DURATION",
    "http(s)://HOST[:PORT]": "URL",
}
_CONFIG_HELP: Final = "TOML file of settings. [REMUDA_CONFIG]"


def model_of(role: ProgramRole) -> type[Settings]:
    match role:
        case "up":
            return UpSettings
        case "frontend":
            return FrontendSettings
        case "worker":
            return WorkerSettings


def setting_options(model: type[Settings], without: Sequence[str] = ()) -> list[click.Parameter]:
    """One option per setting, then --config. None of them has a default: what is not given comes from
    elsewhere. Values stay text, so that a refusal reads the same wherever the value came from."""
    config = click.Option(["--config"], metavar="FILE", type=click.Path(), help=_CONFIG_HELP)
    items = sorted((item for item in described(model) if item.field not in without), key=_place)
    return [*(_option(item) for item in items), config]


def _place(item: Described) -> int:
    """What a process is about comes first in its help, what all of them have comes last."""
    if item.field in CommonSettings.model_fields:
        return 2
    return 0 if item.field in FrontendSettings.model_fields else 1


def metavar(item: Described) -> str:
    accepted = item.setting.accepted
    if accepted.startswith("a number"):
        return "N"
    return _METAVARS.get(accepted, accepted if accepted and " " not in accepted else "TEXT")


def default_text(item: Described) -> str:
    """The default as a person would type it; empty when there is none, or none that is a plain value."""
    default = item.info.default
    match default:
        case None | "" | () | bool():
            return ""
        case timedelta():
            return durations.render(default)
        case _ if default is PydanticUndefined:
            return ""
        case _:
            return str(default)


def _option(item: Described) -> click.Option:
    name = item.flag.removeprefix("--")
    default = default_text(item)
    note = f"{item.env}; default: {default}" if default else item.env
    if item.boolean:
        return click.Option(
            [f"--{name}/--no-{name}", item.field],
            default=None,
            hidden=item.setting.hidden,
            help=f"{item.setting.help} [{note}]",
        )
    return click.Option(
        [f"--{name}", item.field],
        metavar=metavar(item),
        type=click.Path() if metavar(item) == "PATH" else str,
        hidden=item.setting.hidden,
        help=f"{item.setting.help} [{note}]",
    )


S = TypeVar("S", bound=Settings)
Flags = Mapping[str, object]
OptionValues = Mapping[str, object]
Environ = Mapping[str, str]

_ASK: Final = "-"
_TOKEN: Final = "registration_token"
_FIELDS: Final = frozenset(UpSettings.model_fields)  # A file may hold settings of any role.
_READ_ELSEWHERE: Final = frozenset(
    {
        "config",
        "url",
        "api_key",
        "force_meta_backend_capability",
        "force_meta_backend_capability_run_file",
    }
)


def resolve_settings(model: type[S], flags: Flags, environ: Environ = os.environ) -> ResolvedSettings[S]:
    """Every setting of `model` and where it came from. `flags` are by field, `config` among them.

    Raises Misconfigured, naming what cannot be used and what could.
    """
    given = _answered(model, flags)
    labels = given.get("node_labels")
    if isinstance(labels, str) and (problem := forms.label_problem(labels)):
        raise Misconfigured(f"--labels={labels!r} cannot be used: {problem}")
    file, file_name = _file(given, environ)
    saved, saved_in = _saved(model, given, environ)
    if _token_file_is_nearer(given, environ):
        saved, file = _without_token(saved), _without_token(file)
    return resolve(
        model, flags=given, environ=environ, saved=saved, saved_in=saved_in, file=file, file_name=file_name
    )


def data_folder(flags: Flags, environ: Environ = os.environ) -> DataFolder:
    """The data folder alone: whether other settings can be used does not matter to it."""
    file, file_name = _file(flags, environ)
    root = _one(CommonSettings, "data_dir", flags, environ, file, file_name)
    assert isinstance(root, Path)
    return DataFolder(root)


def unknown_variables(environ: Environ) -> Mapping[str, str]:
    """REMUDA_* variables that nothing reads, each with a hint."""
    return unknown_among(environ, _FIELDS | _READ_ELSEWHERE)


def config_file(flags: Flags, environ: Environ) -> tuple[Path, bool]:
    """The config file, and whether it was named explicitly: then it must exist."""
    named = flags.get("config") or environ.get("REMUDA_CONFIG")
    if named:
        return Path(str(named)).expanduser(), True
    return user_config_path("remuda") / "config.toml", False


def ask_for(what: str) -> str:
    """A secret that was given as `-`: asked for at the terminal, or a line of standard input."""
    if sys.stdin.isatty():
        value: str = click.prompt(what, hide_input=True, err=True)
    else:
        value = sys.stdin.readline()
    if not value.strip():
        raise Misconfigured(f"{what} is empty", hint="it was read from standard input")
    return value.strip()


def _answered(model: type[Settings], flags: Flags) -> Flags:
    wanted = (item for item in described(model) if item.secret and flags.get(item.field) == _ASK)
    return {**flags, **{item.field: ask_for(item.field.replace("_", " ").capitalize()) for item in wanted}}


def _file(flags: Flags, environ: Environ) -> tuple[OptionValues, str]:
    path, required = config_file(flags, environ)
    return read_file(path, _FIELDS, required=required), str(path)


def _saved(model: type[Settings], flags: Flags, environ: Environ) -> tuple[OptionValues, str]:
    """What was given to `remuda join`. It belongs to the frontend that was joined: with another it does not
    count, lest that one be shown this one's token."""
    if not issubclass(model, WorkerSettings) or issubclass(model, FrontendSettings):
        return {}, ""
    path = data_folder(flags, environ).joined
    saved = read_json(path)
    wanted = _one(WorkerSettings, "register_to", flags, environ)
    same = not wanted or str(wanted).rstrip("/") == str(saved.get("register_to", "")).rstrip("/")
    return (saved if same else {}), str(path)


def _token_file_is_nearer(flags: Flags, environ: Environ) -> bool:
    """A token file that flag or environment name comes before a token that was saved or stands in a file."""
    return (
        _one(CommonSettings, _TOKEN, flags, environ) is None
        and _one(CommonSettings, "registration_token_file", flags, environ) is not None
    )


def _without_token(values: OptionValues) -> OptionValues:
    return {field: value for field, value in values.items() if field != _TOKEN}


def _one(
    model: type[Settings],
    field: str,
    flags: Flags,
    environ: Environ,
    file: OptionValues | None = None,
    file_name: str = "",
) -> object:
    """One setting, read as if it were the only one."""
    info = model.model_fields[field]
    alone = create_model(field, __base__=Settings, **{field: (info.annotation, info)})  # type: ignore[call-overload]
    found = resolve(alone, flags=flags, environ=environ, file=file, file_name=file_name)
    return getattr(found.values, field)
