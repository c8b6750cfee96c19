"""Every command of README, guides and `--help` can be parsed, with its options; bench commands name the group
that they need."""

import re
import shlex
from pathlib import Path

import click
import pytest
from tools.long_tests import PARTS

from remuda.cli.verbs import root
from tests.support.documented import PAGES, ROOT, Documented, named_in, typed_in
from tests.unit.cli.test_main import verbs

NAMED = [one for page in PAGES for one in named_in(page)]
TYPED = [one for page in PAGES for one in typed_in(page)]
OURS = [one for one in NAMED if one.words[0] in ("remuda", "./remuda")]
BENCH = [one for one in NAMED if "python -m bench" in one.command]


def check_parsed(words: list[str], *, whole: bool = True) -> None:
    """As if it were typed, but nothing is run and no file has to be there. `whole`: nothing is left out."""
    try:
        _parse(words[: words.index(">")] if ">" in words else words)
    except click.MissingParameter:
        assert not whole
    except click.BadParameter as error:
        if error.param is None or not isinstance(error.param.type, click.Path):
            raise


def _parse(words: list[str]) -> None:
    command: click.Command = root
    ctx: click.Context | None = None
    name, rest = "remuda", words
    while True:
        ctx = command.make_context(name, rest, parent=ctx)
        if not isinstance(command, click.Group):
            return
        rest = [*ctx._protected_args, *ctx.args]
        if not rest:
            return
        found, inner, rest = command.resolve_command(ctx, rest)
        assert found is not None
        assert inner is not None
        name, command = found, inner


def examples() -> list[str]:
    found = []
    for path in verbs(root):
        command: click.Command = root
        for name in path:
            assert isinstance(command, click.Group)
            command = command.commands[name]
        lines = (line.strip() for line in (command.epilog or "").splitlines())
        found += [line.rpartition("| ")[2] for line in lines if re.match(r"(echo .* \| )?remuda ", line)]
    return found


@pytest.mark.parametrize("line", examples())
def test_examples_of_help_can_be_parsed(line: str) -> None:
    check_parsed(shlex.split(line)[1:])


@pytest.mark.parametrize("one", OURS, ids=lambda one: f"{one.page}: {one.command}")
def test_commands_of_pages_can_be_parsed(one: Documented) -> None:
    check_parsed(one.words[1:], whole=one in TYPED)


@pytest.mark.parametrize("one", BENCH, ids=lambda one: f"{one.page}: {one.command}")
def test_bench_commands_name_their_group_and_take_their_options(one: Documented) -> None:
    assert one.command.startswith("uv run --group dev python -m bench"), "it needs what tests need"
    module = one.words[one.words.index("-m") + 1]
    if module == "bench.NAME":
        return
    source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()
    if "parser_of" in source:  # Options that several of them have.
        source += (ROOT / "bench" / "contenders.py").read_text()
    given = [word for word in one.words if word.startswith("--") and word != "--group"]
    assert [option for option in given if f'"{option}"' not in source] == []


def test_every_bench_command_is_run_as_written_by_the_long_tests() -> None:
    run = {" ".join(part.command[1:]) for part in PARTS}
    typed = {one.command.removeprefix("uv run --group dev python ") for one in BENCH}
    assert typed - run == {"-m bench.NAME"}
    assert len({part.name for part in PARTS}) == len(PARTS)


def test_pages_have_commands() -> None:
    assert {one.page for one in OURS} >= {"README.md", "fleet.md", "models.md", "operations.md"}
    assert Path(ROOT / "remuda").is_file()
