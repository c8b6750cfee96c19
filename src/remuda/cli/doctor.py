"""`remuda doctor`: says in plain words what is wrong, and what to do about it."""

import json
import os
from dataclasses import asdict

import click

from remuda.cli.commands import client_command, config_option, examples
from remuda.cli.exits import Exit
from remuda.cli.invocation import ClientOptions
from remuda.core.clock import SystemClock


@click.command(
    "doctor",
    short_help="Find out what is wrong, in plain words.",
    epilog=examples("remuda doctor", "remuda doctor --url http://192.168.1.10:8080 --json"),
)
@config_option
@client_command
def command(options: ClientOptions, config: str | None) -> None:
    """Check settings, data folder, disk, ports, frontend, database, bus, clock, GPU driver, versions, nodes,
    operations, models and galleries."""
    from remuda.cli.checks import Patient, examine
    from remuda.cli.findings import Level
    from remuda.core.log import configure

    configure("error")  # What libraries have to say is said by the findings.
    found = examine(Patient(options, config, os.environ, SystemClock()))
    healthy = all(finding.level is not Level.PROBLEM for finding in found)
    if options.as_json:
        click.echo(json.dumps({"healthy": healthy, "findings": [asdict(finding) for finding in found]}))
    else:
        from remuda.cli.findings import page
        from remuda.cli.render import console, show

        show(console(), page(found))
    click.get_current_context().exit(Exit.DONE if healthy else Exit.UNHEALTHY)
