"""`remuda config check`: what a process would be started with, and where each value comes from."""

import json
import os
from dataclasses import asdict

import click

from remuda.cli.commands import ListByDefault, config_option, data_dir_option, examples, json_option
from remuda.cli.invocation import ROLES, ProgramRole


class CheckByDefault(ListByDefault):
    default_verb = "check"


@click.group(
    "config",
    cls=CheckByDefault,
    short_help="Show the settings, and where each comes from.",
    epilog=examples("remuda config check"),
)
def group() -> None:
    """Settings: flag, then REMUDA_*, then LOCALAI_*, then what `remuda join` saved, then the config file.
    Without a command: check them."""


@group.command(
    "check",
    short_help="Show every setting, where it comes from, and what is invalid.",
    epilog=examples("remuda config check", "remuda config check --role worker --json"),
)
@click.option(
    "--role", type=click.Choice(ROLES), default="up", show_default=True, help="Whose settings to check."
)
@config_option
@data_dir_option
@json_option
def check(role: ProgramRole, config: str | None, data_dir: str | None, as_json: bool) -> None:
    """Show every setting, its value and where it comes from, and what is invalid."""
    from remuda.cli.config_table import warnings
    from remuda.cli.options import model_of, resolve_settings
    from remuda.core.settings import setting_rows

    model = model_of(role)
    resolved = resolve_settings(model, {"config": config, "data_dir": data_dir})
    found, strays = setting_rows(resolved.values, resolved.origins), warnings(os.environ)
    if as_json:
        click.echo(json.dumps({"settings": [asdict(row) for row in found], "warnings": strays}))
        return
    from remuda.cli.config_table import table
    from remuda.cli.render import console, show

    show(console(), table(found))
    for stray in strays:
        click.echo(f"warning: {stray}", err=True)
