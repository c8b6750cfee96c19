"""The options of commands: one per setting for services, for clients those that find the frontend, and
numbers and durations, refused in plain words.

Light to import: settings are looked at when a command needs its options, so that `remuda --help` is quick.
"""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

from remuda.cli.invocation import ClientOptions, ProgramRole
from remuda.core import durations

if TYPE_CHECKING:
    from remuda.cli.client import AdminClient

P = ParamSpec("P")

config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(),
    help="TOML file of settings. [REMUDA_CONFIG; default: remuda/config.toml in the user's config folder]",
)
data_dir_option = click.option(
    "--data-dir",
    metavar="PATH",
    type=click.Path(),
    help="Data folder of the `remuda up` or `remuda worker` in question. [REMUDA_DATA_DIR]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def examples(*lines: str) -> str:
    """An epilog of commands to try; the mark in front keeps click from filling them into a paragraph."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


def settings_command(role: ProgramRole, *, without: Sequence[str] = ()) -> type[click.Command]:
    """A kind of command whose options are --config and the settings of a role, `without` some."""

    class SettingsCommand(click.Command):
        def get_params(self, ctx: click.Context) -> list[click.Parameter]:
            if not any(param.name == "data_dir" for param in self.params):
                from remuda.cli.options import model_of, setting_options

                self.params += setting_options(model_of(role), without)
            return super().get_params(ctx)

    return SettingsCommand


def client_command(function: Callable[Concatenate[ClientOptions, P], None]) -> Callable[..., None]:
    """Give a command the options that find the frontend, gathered into its first argument."""

    @functools.wraps(function)
    def gathered(
        url: str | None,
        api_key: str | None,
        ca: str | None,
        data_dir: str | None,
        as_json: bool,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        function(ClientOptions(url, api_key, ca, data_dir, as_json), *args, **kwargs)

    for option in reversed((*_TARGET_OPTIONS, data_dir_option, json_option)):
        gathered = option(gathered)
    return gathered


def connect(options: ClientOptions, timeout_s: float | None = None) -> "AdminClient":
    """A client of the frontend that is asked for."""
    from remuda.cli.client import TIMEOUT_S, AdminClient
    from remuda.cli.target import find_target

    return AdminClient(find_target(options, os.environ), timeout_s or TIMEOUT_S)


def confirm(question: str) -> None:
    """Ask for confirmation; click.Abort on no. Without a terminal, say that --yes is needed."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:  # Ctrl-C, or the end of standard input.
        if sys.stdin.isatty():
            raise
        raise click.UsageError("confirm with --yes: there is no terminal to ask on") from None
    if not agreed:
        raise click.Abort


class NoSuchCommand(click.UsageError):
    """`instead`: what may have been meant; empty where nothing comes to mind."""

    def __init__(self, message: str, instead: str, ctx: click.Context) -> None:
        super().__init__(message, ctx)
        self.instead = instead


class Verbs(click.Group):
    """A group that says what may have been meant by a command that does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        wanted = args[0]
        if self.get_command(ctx, wanted) is None and not wanted.startswith("-") and not ctx.resilient_parsing:
            from remuda.cli.suggestions import suggestion

            path = ctx.command_path
            top = ctx.find_root().command
            at_the_root = top.commands if isinstance(top, click.Group) else ()
            instead = suggestion(self, path, wanted, at_the_root)
            raise NoSuchCommand(f"no such command: {path} {wanted}", instead, ctx)
        return super().resolve_command(ctx, args)


class ListByDefault(Verbs):
    """A group that lists when no verb is given: `remuda nodes --json` is `remuda nodes list --json`."""

    default_verb = "list"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_for_help = any(word in args[:1] for word in ctx.help_option_names)
        completing = ctx.resilient_parsing  # The verb is yet to come.
        if not completing and not asks_for_help and (not args or args[0].startswith("-")):
            args = [self.default_verb, *args]
        return super().parse_args(ctx, args)


_TARGET_OPTIONS = (
    click.option(
        "--url",
        metavar="URL",
        help="URL of the frontend. [REMUDA_URL; default: the one that runs on this machine's data folder]",
    ),
    click.option("--api-key", metavar="KEY", help="API key; - asks for it. [REMUDA_API_KEY]"),
    click.option(
        "--ca",
        metavar="PATH",
        type=click.Path(),
        help="PEM file of the CA that signed the frontend's certificate. [REMUDA_CA]",
    ),
)


class WholeNumber(click.ParamType[int]):
    """From `least` to `most`, both of them included."""

    name = "N"

    def __init__(self, least: int, most: int | None = None) -> None:
        self._least = least
        self._most = most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(str(value))
        except ValueError:
            self.fail(f"{str(value)!r} is not {self._wanted()}.", param, ctx)
        if number < self._least or (self._most is not None and number > self._most):
            self.fail(f"{number} is not {self._wanted()}.", param, ctx)
        return number

    def _wanted(self) -> str:
        if self._most is None:
            return f"a whole number of {self._least} or more"
        return f"a whole number from {self._least} to {self._most}"


class Amount(click.ParamType[float]):
    """A number of 0 or more."""

    name = "N"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(str(value))
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            self.fail(f"{str(value)!r} is not a number of 0 or more.", param, ctx)
        return number


def span_of(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    """For `callback`: the span that an option names."""
    if value is None:
        return None
    try:
        return durations.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
