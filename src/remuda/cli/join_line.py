"""`remuda join-line`: show once more what to run on a machine that is to join."""

import click

from remuda.cli.commands import client_command, connect, examples
from remuda.cli.invocation import ClientOptions


@click.command(
    "join-line",
    short_help="Show the command that makes another machine join.",
    epilog=examples("remuda join-line", "remuda join-line --json"),
)
@client_command
def command(options: ClientOptions) -> None:
    """Show the command that makes another machine join this frontend. It contains the registration token."""
    from remuda.wire.admin import JoinLines

    with connect(options) as client:
        answer = client.get("api", "join-line", this_machine="true")
    if options.as_json:
        click.echo(answer.body)
        return
    lines = answer.read(JoinLines)
    if lines.this_machine_only:
        click.echo("Works on this machine only, for one more worker with a --data-dir of its own:")
    else:
        click.echo(
            "Run on the machine that is to join (needs Python 3.11 or newer and a Python package index):"
        )
    click.echo(f"  {lines.line}")
    click.echo("or, where uv is installed:")
    click.echo(f"  {lines.uvx_line}")
    if lines.this_machine_only:
        click.echo("To let other machines in, start the frontend with --lan.")
