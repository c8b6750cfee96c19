"""`remuda join`: remember which frontend this machine belongs to, then work for it."""

from functools import partial
from pathlib import Path

import click

from remuda.cli import service_unit
from remuda.cli.options import registration_token
from remuda.cli.running import log_as, run_until_signal
from remuda.cli.settings import WorkerSettings
from remuda.cli.worker import work
from remuda.core.settings import Resolved
from remuda.host.folder import DataFolder, write_json


def run(resolved: Resolved[WorkerSettings], service: bool) -> int:
    """Stays in the foreground, unless a service is to do the work."""
    log_as(resolved)
    planned = service_unit.plan(resolved.values.data_dir.absolute()) if service else None
    folder = DataFolder(resolved.values.data_dir)
    folder.prepare()
    write_json(folder.joined, to_remember(resolved))
    if planned is None:
        return run_until_signal(partial(work, resolved.values))
    service_unit.install(planned)
    click.echo(f"{planned.name} is installed and started.")
    for note in planned.notes:
        click.echo(f"  {note}")
    return 0


def to_remember(resolved: Resolved[WorkerSettings]) -> dict[str, object]:
    """What was given, by whatever means, so that `remuda worker` alone resumes, wherever it is started; a
    token file's content too, for the file may have been meant for this once."""
    once = ("data_dir", "registration_token_file")
    given = {field: value for field, value in resolved.given.items() if field not in once}
    for field in given:
        value = getattr(resolved.values, field)
        if isinstance(value, Path):
            given[field] = str(value.absolute())
    token = registration_token(resolved.values)
    return given if token is None else {**given, "registration_token": token.get_secret_value()}
