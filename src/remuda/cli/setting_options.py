"""From the declaration of a setting to its option on the command line."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import click
from pydantic_core import PydanticUndefined

from remuda.assembly.settings import CommonSettings, FrontendSettings, UpSettings, WorkerSettings, forms
from remuda.cli.invocation import Role
from remuda.core import durations
from remuda.core.settings import Described, Settings, described
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


def model_of(role: Role) -> type[Settings]:
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
