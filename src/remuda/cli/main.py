"""The command `remuda`: how it ends, and the verbs that run until they are stopped. They import what they
need when they run, and do without the other verbs, which stand in `verbs`.
"""

import errno
import gc
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Final, NoReturn

import click

from remuda import __version__
from remuda.cli.argv import hide_secrets_from_argv
from remuda.cli.commands import NoSuchCommand, Verbs, examples, settings_command
from remuda.cli.exits import Exit, Interrupted, exit_of, report
from remuda.core.errors import Problem, RemudaError
from remuda.core.optional_imports import without_extras
from remuda.core.os_errors import is_full, os_reason

_NEW_OBJECTS: Final = 300_000  # Before the first look for garbage: imports make many, and leave hardly any.


_NO_JSON: Final = {
    **dict.fromkeys(
        ("up", "frontend", "worker", "join"),
        "it runs until it is stopped; --log-format json makes its log JSON",
    ),
    "completion": "it prints a shell script",
}


class Root(Verbs):
    """Turns expected trouble into plain lines and an exit code that means something."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["--json"]:
            report(Problem("usage", "--json goes after the command: remuda nodes --json"), as_json=True)
            ctx.exit(Exit.MISUSED)
        try:
            return super().parse_args(ctx, args)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            report(usage_problem(error), as_json=False)
            ctx.exit(Exit.MISUSED)

    def invoke(self, ctx: click.Context) -> object:
        # Looked for here: it counts even where the rest cannot be parsed. Behind -- nothing is an option.
        as_json = "--json" in ctx.args[: ctx.args.index("--") if "--" in ctx.args else None]
        try:
            return super().invoke(ctx)
        except RemudaError as error:
            problem = error.problem()
            report(
                Problem(problem.code, error.message, problem.hint),
                as_json=as_json,
                details=error.details,
                is_error=not isinstance(error, Interrupted),
            )
            ctx.exit(exit_of(error))
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            report(usage_problem(error), as_json=as_json)
            ctx.exit(Exit.MISUSED)
        except (KeyboardInterrupt, click.Abort):  # The person who pressed it knows.
            ctx.exit(Exit.INTERRUPTED)
        except OSError as error:
            if error.errno in (None, errno.EPIPE):  # The reader of our output has gone: click's business.
                raise
            report(_of_the_system(error), as_json=as_json)
            ctx.exit(Exit.UNAVAILABLE)
        except (click.exceptions.Exit, click.ClickException):
            raise
        except Exception as defect:
            if not as_json:
                raise
            words = f"a bug in Remuda: {type(defect).__name__}: {defect}"
            report(
                Problem("internal", words, "please report it; without --json the full traceback is shown"),
                as_json=True,
            )
            ctx.exit(Exit.DEFECT)


def usage_problem(error: click.UsageError) -> Problem:
    """A mistake on the command line in one sentence, and where to look it up."""
    path = "remuda" if error.ctx is None else error.ctx.command_path
    help_line = "" if error.ctx is None else f"see {path} --help"
    match error:
        case NoSuchCommand(instead=instead) if instead:
            return Problem("usage", error.message, f"did you mean: {instead}")
        case click.NoSuchOption(option_name="--json", ctx=click.Context(command=command)):
            return Problem(
                "usage", f"{path} has no --json: {_NO_JSON.get(command.name or '', 'it prints no document')}"
            )
        case click.NoSuchOption(option_name=name, possibilities=possible):
            near = _near_options(name, possible or ())
            hint = f"did you mean {' or '.join(near)}?" if near else help_line
            return Problem("usage", f"{path} has no option {name}", hint)
        case click.BadOptionUsage() if "requires an argument" in error.message:
            return Problem("usage", f"{error.option_name} needs a value", help_line)
        case click.MissingParameter(param=click.Parameter() as param):
            return Problem("usage", f"{path} needs {_shown_name(param, error.ctx)}", help_line)
        case click.BadParameter(param=click.Parameter() as param):
            return Problem("usage", f"{_shown_name(param, error.ctx)}: {_sentence(error.message)}", help_line)
    return Problem("usage", _sentence(error.format_message()), help_line)


def _near_options(wanted: str, possible: Sequence[str]) -> list[str]:
    """Click compares them with their dashes, which makes short ones look alike."""
    names = {option.lstrip("-"): option for option in possible}
    return sorted(names[near] for near in get_close_matches(wanted.lstrip("-"), names))


def _shown_name(param: click.Parameter, ctx: click.Context | None) -> str:
    """As `--help` has it."""
    if isinstance(param, click.Argument) and ctx is not None:
        return param.make_metavar(ctx).strip("[]")
    return param.opts[0] if param.opts else param.human_readable_name


def _sentence(text: str) -> str:
    """Click's messages in the style of ours: no capital in front, no full stop, on one line."""
    text = " ".join(text.split()).removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _of_the_system(error: OSError) -> Problem:
    """An operating-system error that no command has a better message for."""
    where = f"{error.filename}: " if error.filename else ""
    hint = "free some space there" if is_full(error) else "check that it exists and that you have access"
    return Problem("system_refused", f"{where}{os_reason(error)}", hint)


@click.group(
    "remuda",
    cls=Root,
    epilog=examples("remuda up", "remuda nodes", "remuda doctor"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="remuda", message="%(prog)s %(version)s")
def root() -> None:
    """Turns the machines you own into one OpenAI-compatible endpoint."""


@root.command(
    cls=settings_command("up", without=["register_to", "ca"]),  # Its worker knows where the frontend is.
    short_help="Run a frontend and a worker on this machine.",
    epilog=examples("remuda up", "remuda up --lan", "remuda up --port 8081 --data-dir /tmp/second"),
)
@click.pass_context
def up(ctx: click.Context, /, **flags: object) -> None:
    """Run a frontend and a worker on this machine: a fleet of one that others can join."""
    from remuda.assembly.addresses import check_start
    from remuda.assembly.settings import UpSettings
    from remuda.cli.options import resolve_settings

    resolved = resolve_settings(UpSettings, flags)
    check_start(resolved.values)
    _say_starting("a frontend and a worker on this machine")
    with without_extras():
        from remuda.cli.up import run_up  # A second of imports, which a refusal need not wait for.

    ctx.exit(run_up(resolved))


@root.command(
    cls=settings_command("frontend"),
    short_help="Run the API without a worker.",
    epilog=examples(
        "remuda frontend",
        "remuda frontend --lan --database-url postgresql://remuda@db/remuda --nats-url nats://bus:4222",
    ),
)
@click.pass_context
def frontend(ctx: click.Context, /, **flags: object) -> None:
    """Run the API without a worker. Several can share one PostgreSQL and one NATS server."""
    from remuda.assembly.addresses import check_start
    from remuda.assembly.settings import FrontendSettings
    from remuda.cli.options import resolve_settings

    resolved = resolve_settings(FrontendSettings, flags)
    check_start(resolved.values)
    _say_starting("the frontend")
    with without_extras():
        from remuda.cli.up import run_frontend

    ctx.exit(run_frontend(resolved))


@root.command(
    cls=settings_command("worker"),
    short_help="Run a worker that has joined before, or is configured by settings.",
    epilog=examples(
        "remuda worker", "remuda worker --register-to http://192.168.1.10:8080 --token-file token"
    ),
)
@click.pass_context
def worker(ctx: click.Context, /, **flags: object) -> None:
    """Run a worker with the settings that `remuda join` saved on this machine, or with those given here."""
    from remuda.assembly.settings import WorkerSettings
    from remuda.assembly.settings.worker import required_frontend, required_token
    from remuda.cli.options import resolve_settings

    resolved = resolve_settings(WorkerSettings, flags)
    frontend_url = required_frontend(resolved.values)
    required_token(resolved.values)
    _say_starting(f"the worker of {frontend_url}")
    with without_extras():  # Seconds of imports, which a refusal need not wait for.
        from remuda.cli.worker import run_worker_command

    ctx.exit(run_worker_command(resolved))


@root.command(
    cls=settings_command("worker", without=["register_to"]),
    short_help="Add this machine to a fleet.",
    epilog=examples(
        "remuda join http://192.168.1.10:8080 --token TOKEN",
        "remuda join http://192.168.1.10:8080 --token - --name attic --service",
    ),
)
@click.argument("url")
@click.option(
    "--service", is_flag=True, help="Install a systemd or launchd unit that starts with the machine."
)
@click.pass_context
def join(ctx: click.Context, /, url: str, service: bool, **flags: object) -> None:
    """Add this machine to the fleet of the frontend at URL. Settings are saved: `remuda worker` resumes."""
    from remuda.assembly.settings import WorkerSettings
    from remuda.assembly.settings.worker import required_token
    from remuda.cli import service_unit
    from remuda.cli.options import resolve_settings
    from remuda.cli.target import checked_url

    flags["register_to"] = checked_url(url, "URL")
    resolved = resolve_settings(WorkerSettings, flags)
    required_token(resolved.values)
    planned = service_unit.plan(resolved.values.data_dir.absolute()) if service else None
    click.echo(f"Starting a worker on this machine, to join {resolved.values.register_to} ...", err=True)
    with without_extras():  # Seconds of imports, which a refusal need not wait for.
        from remuda.cli.worker import run_join

    ctx.exit(run_join(resolved, planned))


def _say_starting(what: str) -> None:
    if sys.stderr.isatty():  # Elsewhere the log says it.
        click.echo(f"Starting {what} ...", err=True)


def main() -> NoReturn:
    hide_secrets_from_argv()
    gc.set_threshold(_NEW_OBJECTS)
    if sys.argv[1:2] == [] or sys.argv[1] not in root.commands:
        import_module("remuda.cli.verbs")  # Adds them.
    root.main(prog_name="remuda")
