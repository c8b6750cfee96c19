"""How commands end, what help says, and that asking for it is quick."""

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import click
import pytest
from click.testing import CliRunner

from remuda import __version__
from remuda.cli import suggestions
from remuda.cli.commands import ListByDefault
from remuda.cli.completion import script
from remuda.cli.exits import MEANINGS, Exit, exit_of
from remuda.cli.main import Root
from remuda.cli.verbs import root
from remuda.core.errors import (
    Conflict,
    Forbidden,
    FrontendUnreachable,
    Invalid,
    Misconfigured,
    NotFound,
    RemudaError,
    StoreUnusable,
    Unauthorized,
)


def verbs(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from verbs(child, (*path, name))


@pytest.mark.parametrize("path", list(verbs(root)), ids=" ".join)
def test_every_command_has_help_with_examples(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(root, [*path, "--help"])

    assert result.exit_code == 0
    assert "\n  Examples:\n    remuda " in result.output


def test_every_command_is_listed_with_a_whole_sentence() -> None:
    groups = [group for path in verbs(root) if isinstance(group := found(path), click.Group)]
    cut = [
        name
        for group in groups
        for name, verb in group.commands.items()
        # As click lists them on a terminal of 80 columns.
        if verb.get_short_help_str(80 - 6 - max(map(len, group.commands))).endswith("...")
    ]
    assert cut == []


def found(path: tuple[str, ...]) -> click.Command:
    command: click.Command = root
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    return command


def test_asking_for_help_imports_nothing_slow() -> None:
    code = "import remuda.cli.verbs, sys; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert {"pydantic", "httpx", "rich", "fastapi", "sqlalchemy", "anyio"} & set(
        loaded.stdout.split()
    ) == set()


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(root, ["--version"]).output == f"remuda {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Misconfigured("x"), Exit.MISUSED),
        (FrontendUnreachable("x"), Exit.UNREACHABLE),
        (Unauthorized("x"), Exit.REFUSED),
        (Forbidden("x"), Exit.REFUSED),
        (NotFound("x"), Exit.NOT_FOUND),
        (Invalid("x"), Exit.REJECTED),
        (Conflict("x"), Exit.REJECTED),
        (StoreUnusable("x"), Exit.UNAVAILABLE),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: RemudaError, code: Exit) -> None:
    assert exit_of(error) is code


def test_every_exit_code_has_a_meaning() -> None:
    assert MEANINGS.keys() == set(Exit)


def failing(error: BaseException) -> Root:
    """A program whose one verb ends in this."""

    def fail(as_json: bool) -> None:
        raise error

    verb = click.Command("fail", callback=fail, params=[click.Option(["--json", "as_json"], is_flag=True)])
    return Root("remuda", commands=[verb])


def test_expected_trouble_is_one_plain_line_and_a_hint() -> None:
    result = CliRunner().invoke(failing(NotFound("there is\n no \x1b[1mnode", hint="look again")), ["fail"])

    assert result.exit_code == Exit.NOT_FOUND
    assert result.stderr == "error: there is no  [1mnode\nhint: look again\n"
    assert result.stdout == ""


def test_expected_trouble_is_json_where_json_was_asked_for() -> None:
    result = CliRunner().invoke(failing(NotFound("no node", hint="look")), ["fail", "--json"])

    assert json.loads(result.stderr) == {"error": {"code": "not_found", "message": "no node", "hint": "look"}}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_interruption_is_quiet_and_has_the_exit_code_of_one(
    error: BaseException, options: list[str]
) -> None:
    result = CliRunner().invoke(failing(error), ["fail", *options])
    assert (result.exit_code, result.stderr) == (Exit.INTERRUPTED, "")


@pytest.mark.parametrize("verb", ["up", "frontend"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data-dir", "{0}/file"], "there is a file of this name, which is not a folder"),
        (["--tls-cert", "{0}/none", "--tls-key", "{0}/none"], "--tls-cert {0}/none cannot be read"),
        (["--database-url", "mysql://db/remuda"], "the database URL mysql://db/remuda is of an unknown kind"),
    ],
)
def test_a_start_that_cannot_succeed_is_refused_before_anything_slow_is_imported(
    verb: str, options: list[str], words: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    given = [option.format(tmp_path) for option in ("--data-dir", "{0}/data", "--port", "0", *options)]
    program = "import sys\nfrom remuda.cli.verbs import root\n" + dedent("""
        try:
            root.main(sys.argv[1:])
        finally:
            print(*{"sqlalchemy", "nats", "grpc", "starlette"} & set(sys.modules))
    """)
    done = subprocess.run(
        [sys.executable, "-c", program, verb, *given], capture_output=True, text=True, check=False
    )

    assert done.returncode == Exit.MISUSED, done.stderr
    assert words.format(tmp_path) in done.stderr
    assert done.stdout.strip() == ""


def test_a_defect_is_not_dressed_up() -> None:
    assert isinstance(CliRunner().invoke(failing(ZeroDivisionError()), ["fail"]).exception, ZeroDivisionError)


@pytest.mark.parametrize("arguments", [["nodes", "--bogus"], ["nodes", "approve"], ["bogus"], ["join"]])
def test_misuse_has_its_exit_code(arguments: list[str]) -> None:
    assert CliRunner().invoke(root, arguments).exit_code == Exit.MISUSED


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("nodes --jsn", "remuda nodes list has no option --jsn\nhint: did you mean --json?"),
        ("up --prot 1", "remuda up has no option --prot\nhint: did you mean --port?"),
        ("up --bogus", "remuda up has no option --bogus\nhint: see remuda up --help"),
        ("nodes list --label", "remuda nodes list has no option --label\nhint: see remuda nodes list --help"),
        (
            "backends install x --yes",
            "remuda backends install has no option --yes\nhint: see remuda backends install --help",
        ),
        ("nodes show", "remuda nodes show needs NAME\nhint: see remuda nodes show --help"),
        ("nodes approve", "remuda nodes approve needs NAME...\nhint: see remuda nodes approve --help"),
        ("--bogus", "remuda has no option --bogus\nhint: see remuda --help"),
        (
            "keys create x --scope",
            "--scope needs a value",
        ),
        (
            "chat m --max-tokens x",
            "--max-tokens: 'x' is not a whole number of 1 or more\nhint: see remuda chat --help",
        ),
        (
            "keys create x --scope all",
            "--scope: 'all' is not one of 'inference', 'read', 'admin'\nhint: see remuda keys create --help",
        ),
        ("keys list x", "got unexpected extra argument (x)\nhint: see remuda keys list --help"),
        ("models unload", "name one model, or give --all\nhint: see remuda models unload --help"),
    ],
)
def test_misuse_is_one_line_and_a_hint(typed: str, told: str) -> None:
    result = CliRunner().invoke(root, typed.split(), prog_name="remuda")

    assert (result.exit_code, result.stderr) == (Exit.MISUSED, f"error: {told}\n")


def test_no_command_at_all_shows_the_help() -> None:
    assert "Commands:" in CliRunner().invoke(root, [], prog_name="remuda").output


@pytest.mark.parametrize(
    ("typed", "instead"),
    [
        ("download qwen3", "remuda pull NAME"),
        ("models run qwen3", "remuda run MODEL"),
        ("serve", "remuda up"),
        ("install llama-cpp", "remuda backends install"),
        ("approve attic", "remuda nodes approve"),
        ("node", "remuda nodes"),
        ("modles", "remuda models"),
        ("models ls", "remuda models list"),
        ("models rm qwen3", "remuda models remove"),
        ("models stop qwen3", "remuda models unload"),
        ("nodes delete attic", "remuda nodes remove"),
        ("keys rm laptop", "remuda keys revoke"),
        ("ops stop 3f2a", "remuda ops cancel"),
        ("help", "remuda --help"),
        ("nodes help", "remuda nodes --help"),
        ("models info qwen3", "remuda models show MODEL"),
        ("models logs qwen3", "remuda logs"),
        ("nodes add attic", "remuda join-line"),
        ("delete attic", "remuda backends remove, or remuda models remove, or remuda nodes remove"),
        ("update llama-cpp", "remuda backends upgrade"),
        ("machines", "remuda nodes"),
    ],
)
def test_a_command_that_does_not_exist_gets_the_one_that_was_meant(typed: str, instead: str) -> None:
    result = CliRunner().invoke(root, typed.split(), prog_name="remuda")

    assert result.exit_code == Exit.MISUSED
    assert f"hint: did you mean: {instead}" in result.stderr


def test_every_suggestion_is_a_command() -> None:
    known = {" ".join(("remuda", *path)) for path in verbs(root)}
    for told in suggestions.FROM_ELSEWHERE.values():
        for line in told.split(", or "):
            plain = " ".join(word for word in line.split("(")[0].split() if word.islower())
            assert plain in known | {"remuda --version", "remuda --help"}


def test_misuse_is_json_where_json_was_asked_for() -> None:
    result = CliRunner().invoke(root, ["nodes", "approve", "--json"])

    assert result.exit_code == Exit.MISUSED
    assert json.loads(result.stderr)["error"]["code"] == "usage"


@pytest.mark.parametrize("path", [path for path in verbs(root) if path], ids=" ".join)
def test_every_command_takes_json_or_says_why_not(path: tuple[str, ...]) -> None:
    command: click.Command = root
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    takes = any("--json" in param.opts for param in command.get_params(click.Context(command)))
    if takes or isinstance(command, ListByDefault):
        return
    result = CliRunner().invoke(root, [*path, "--json"], prog_name="remuda")

    assert result.exit_code == Exit.MISUSED
    error = json.loads(result.stderr)["error"]
    assert error["code"] == "usage"
    assert error["message"].startswith(f"remuda {' '.join(path)} has no --json: ")


def test_json_in_front_of_the_command_is_told_where_it_belongs() -> None:
    result = CliRunner().invoke(root, ["--json", "nodes"])

    assert result.exit_code == Exit.MISUSED
    assert "remuda nodes --json" in json.loads(result.stderr)["error"]["message"]


def test_what_the_system_refuses_is_told_in_a_sentence() -> None:
    refused = IsADirectoryError(errno.EISDIR, "Is a directory", "/tmp/x")

    plain = CliRunner().invoke(failing(refused), ["fail"])
    as_json = CliRunner().invoke(failing(refused), ["fail", "--json"])

    assert plain.stderr.startswith("error: /tmp/x: Is a directory\nhint: ")
    assert json.loads(as_json.stderr)["error"]["code"] == "system_refused"
    assert plain.exit_code == as_json.exit_code == Exit.UNAVAILABLE


def test_a_defect_is_an_object_too_where_json_was_asked_for() -> None:
    result = CliRunner().invoke(failing(ZeroDivisionError("x")), ["fail", "--json"])

    assert (result.exit_code, json.loads(result.stderr)["error"]["code"]) == (Exit.DEFECT, "internal")


def test_join_refuses_what_is_no_url() -> None:
    result = CliRunner().invoke(root, ["join", "192.168.1.10:8080"])

    assert result.exit_code == Exit.MISUSED
    assert "did you mean http://192.168.1.10:8080?" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_says_how_to_install_it_and_calls_us_back(shell: str) -> None:
    text = script(root, shell)

    assert f"remuda completion {shell} > " in text
    assert f"_REMUDA_COMPLETE={shell}_complete" in text
    assert text.startswith("#compdef remuda") == (shell == "zsh")


def test_completion_offers_verbs_and_settings() -> None:
    def complete(words: str, position: int) -> str:
        environ = {"_REMUDA_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(position)}
        return CliRunner().invoke(root, [], env=environ, prog_name="remuda").output

    assert "plain,approve" in complete("remuda nodes ", 2)
    assert "plain,--heartbeat-interval" in complete("remuda worker --heart", 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["join", "http://127.0.0.1:1"], "a registration token is needed"),
        (["join", "http://127.0.0.1:1", "--token", "t", "--addr", "host:first"], "accepted: HOST:PORT"),
        (["worker"], "this machine has not joined a fleet"),
    ],
)
def test_a_worker_that_cannot_start_is_refused_before_anything_slow_is_imported(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    code = (
        "import sys; from remuda.cli.verbs import root\n"
        "try: root.main()\n"
        "finally: print('remuda.assembly.worker' in sys.modules, 'aiohttp' in sys.modules)"
    )
    words = [sys.executable, "-c", code, *arguments, "--data-dir", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, env={"HOME": str(tmp_path)}, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (Exit.MISUSED, "False False")
    assert said in done.stderr
