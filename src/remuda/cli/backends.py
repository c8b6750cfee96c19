"""`remuda backends` of this machine: find, fetch and look after them. No frontend is needed."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

from remuda.cli.commands import ListByDefault, config_option, data_dir_option, examples, json_option, span_of
from remuda.cli.output import one_line
from remuda.core.clock import SystemClock
from remuda.core.errors import Conflict, Invalid
from remuda.core.hints import pasted

if TYPE_CHECKING:
    from remuda.assembly.local_backends import LocalBackends
    from remuda.gallery.model import Reading
    from remuda.worker.depot.depot import Collected, Installed
    from remuda.worker.depot.install_spec import InstallSpec

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Here:
    """What the options of these commands say."""

    config: str | None
    data_dir: str | None
    as_json: bool

    def machine(self) -> "LocalBackends":
        from remuda.assembly.local_backends import LocalBackends
        from remuda.assembly.settings import WorkerSettings
        from remuda.cli.options import resolve_settings

        return LocalBackends.of(
            resolve_settings(WorkerSettings, {"config": self.config, "data_dir": self.data_dir})
        )


def local_command(function: Callable[Concatenate[Here, P], None]) -> Callable[..., None]:
    """Give a command the options that find this machine's settings, gathered into its first argument."""

    @functools.wraps(function)
    def gathered(
        config: str | None, data_dir: str | None, as_json: bool, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        function(Here(config, data_dir, as_json), *args, **kwargs)

    for option in (json_option, data_dir_option, config_option):
        gathered = option(gathered)
    return gathered


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    from remuda.wire.sizes import parse_size

    if value is None:
        return None
    size = parse_size(value)
    if size is None:
        raise click.BadParameter(f"{value!r} is not a size; write it like 20GiB")
    return size


@click.group(
    "backends",
    cls=ListByDefault,
    short_help="See, install, upgrade and remove backends, on the fleet or on this machine.",
    epilog=examples(
        "remuda backends",
        "remuda backends available",
        "remuda backends install llama-cpp",
        "remuda backends upgrade llama-cpp --rolling",
        "remuda backends pull llama-cpp",
    ),
)
def group() -> None:
    """The programs that run models. Without a command: list what is installed on the fleet's nodes.

    list, available, upgrades, install, upgrade and remove go through a frontend and work on any number of
    nodes. The others are for this machine alone and need no frontend.
    """


@group.command(
    "search",
    short_help="Search the galleries for backends.",
    epilog=examples("remuda backends search", "remuda backends search text to speech"),
)
@click.argument("words", metavar="[TEXT]", nargs=-1)
@local_command
def search_backends(here: Here, words: tuple[str, ...]) -> None:
    """Search the galleries for backends whose name, tags or description contain all words of TEXT."""
    import anyio

    from remuda.cli.backend_tables import search_document, search_table
    from remuda.cli.fleet_tables import none_has_it
    from remuda.cli.render import console, show
    from remuda.gallery.model import search

    machine = here.machine()
    readings = anyio.run(machine.readings)
    found = search(readings, " ".join(words))
    if not found:  # An index may be older than what is looked for.
        readings = anyio.run(partial(machine.readings, refresh=True))
        found = search(readings, " ".join(words))
    if here.as_json:
        click.echo(json.dumps({"backends": [search_document(one) for one in found]}))
    elif found:
        output = console()
        show(output, search_table(found, output))
    else:
        click.echo(none_has_it(all_read=not any(reading.trouble for reading in readings)))
    _tell_standing(readings)


@group.command(
    "show",
    short_help="Show the builds of a backend, and which one fits here.",
    epilog=examples("remuda backends show llama-cpp", "remuda backends show localai@whisper"),
)
@click.argument("name")
@local_command
def show_backend(here: Here, name: str) -> None:
    """Show the builds of a backend, which of them this machine would get, and why."""
    import anyio

    from remuda.cli.backend_tables import (
        answer_document,
        answer_lines,
        candidate_document,
        candidate_table,
    )
    from remuda.cli.render import console, show
    from remuda.gallery.resolve import ResolvedBuild, Unresolved, candidates, resolve
    from remuda.worker.depot.install_spec import spec_from_gallery

    machine = here.machine()
    readings, hardware = anyio.run(machine.readings), anyio.run(machine.hardware)
    answer = resolve(readings, name, hardware)
    builds = candidates(readings, name, hardware)
    if isinstance(answer, Unresolved) and not builds:
        readings = anyio.run(partial(machine.readings, refresh=True))
        answer, builds = resolve(readings, name, hardware), candidates(readings, name, hardware)
    if isinstance(answer, Unresolved) and not builds:
        spec_from_gallery(answer, readings)  # Raises what stands against it.
    if isinstance(
        answer, ResolvedBuild
    ):  # What is wrong with other galleries has nothing to do with this one.
        readings = tuple(reading for reading in readings if reading.gallery == answer.gallery)
    _tell_standing(readings)
    if here.as_json:
        document = {"name": name, "machine": hardware.platform, "capability": hardware.effective_capability}
        rows = [candidate_document(build) for build in builds]
        click.echo(json.dumps({**document, "builds": rows, **answer_document(answer)}))
        return
    capability = hardware.effective_capability
    found = "no GPU found" if capability == "default" else f"builds for {capability} will be used"
    click.echo(one_line(f"this machine is {hardware.platform}; {found}"))
    for line in answer_lines(answer):
        click.echo(one_line(line))
    show(console(), candidate_table(builds))


@group.command(
    "pull",
    short_help="Install or update a backend on this machine only.",
    epilog=examples(
        "remuda backends pull llama-cpp",
        "remuda backends pull quay.io/me/my-backend:v2 --name mine",
        "remuda backends pull ./my-backend",
    ),
)
@click.argument("what", metavar="REF|NAME")
@click.option("--name", default="", help="Install it under this name. Default for images: their own.")
@click.option("--alias", default="", help="A second name for it.")
@local_command
def pull_backend(here: Here, what: str, name: str, alias: str) -> None:
    """Install or update a backend on this machine: one from a gallery by NAME, or an image, archive or folder
    by REF. What is already here is not downloaded again."""
    import anyio

    from remuda.cli.pull_progress import watching

    machine = here.machine()

    async def pull() -> "Installed":
        spec = await _install_spec(machine, what, name, alias)
        async with machine.installing_depot() as depot:
            with watching(spec.name, quiet=here.as_json) as on_step:
                done = await depot.install(spec, refresh=True, on_step=on_step)
            await machine.collect(depot)
        return done

    done = anyio.run(pull)
    if here.as_json:
        document = {"name": done.name, "folder": str(done.folder), "changed": done.changed}
        click.echo(json.dumps(document))
    else:
        click.echo(one_line(f"{done.name}: {'installed' if done.changed else 'up to date'} in {done.folder}"))


def list_here(here: Here) -> None:
    """The backends that are installed, and the names under which they can be asked for."""
    import anyio

    from remuda.cli.backend_tables import installed_table
    from remuda.cli.render import console, show

    machine = here.machine()
    hardware = anyio.run(machine.hardware)
    listed = anyio.run(machine.depot().installed, hardware.effective_capability)
    if here.as_json:
        rows = [one.row.model_dump(mode="json") for one in listed.reported]
        click.echo(json.dumps({"backends": rows, "problems": listed.problems}))
        return
    for problem in listed.problems:
        click.echo(one_line(f"warning: {problem}"), err=True)
    if listed.backends:
        output = console()
        show(output, installed_table(listed.backends, output))
    else:
        click.echo("no backends are installed; install one with: remuda backends pull NAME")


def remove_here(here: Here, name: str) -> None:
    """Remove a backend's folder. What it was made of is kept for a while; `gc` lets go of it."""
    import anyio

    machine = here.machine()
    capability = anyio.run(machine.hardware).effective_capability
    found = anyio.run(machine.depot().installed, capability).get(name)
    if found is not None:
        _check_unused(found.folder)
    gone = anyio.run(machine.depot().remove, name, capability)
    click.echo(json.dumps({"removed": gone}) if here.as_json else one_line(f"{', '.join(gone)}: removed"))


def _check_unused(folder: Path) -> None:
    """A worker of this machine may run it: processes do not outlive their files. Conflict names them."""
    from remuda.worker.depot.versions import program_running_in

    if occupant := program_running_in(folder):
        raise Conflict(
            f"{folder.name} is in use by process {occupant.pid} ({occupant.name})",
            hint=f"let the worker stop it first: remuda backends remove --nodes NODE {pasted(folder.name)}",
        )


@group.command(
    "gc",
    short_help="Remove downloaded layers that no backend needs.",
    epilog=examples("remuda backends gc --dry-run", "remuda backends gc --budget 20GiB"),
)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed, and why.")
@click.option(
    "--budget", metavar="SIZE", callback=_size, help="Most to keep. Default: the setting depot-budget."
)
@click.option(
    "--unused",
    metavar="SPAN",
    callback=span_of,
    help="Remove what no backend has needed for this long. Default: the setting depot-unused.",
)
@local_command
def collect_garbage(here: Here, dry_run: bool, budget: int | None, unused: timedelta | None) -> None:
    """Remove downloaded layers that no installed backend needs, or that exceed the budget."""
    import anyio

    from remuda.cli.backend_tables import leaving_table
    from remuda.cli.render import console, show
    from remuda.wire.sizes import install_size

    machine = here.machine()
    depot = machine.depot()

    async def run() -> "Collected":
        if not dry_run:
            await depot.recover()
        return await machine.collect(depot, budget_bytes=budget, unused=unused, dry_run=dry_run)

    done = anyio.run(run)
    freed = done.blobs_bytes + done.partials_bytes
    if here.as_json:
        rows = [{"digest": one.blob.digest, "size": one.blob.size, "why": one.why} for one in done.leaving]
        document = {"dry_run": dry_run, "blobs": rows, "freed_bytes": freed, "kept_bytes": done.kept_bytes}
        click.echo(json.dumps(document))
        return
    if done.leaving:
        show(console(), leaving_table(done.leaving))
    word = "would be freed" if dry_run else "freed"
    click.echo(f"{install_size(freed)} {word}, {install_size(done.kept_bytes)} kept")


async def _install_spec(machine: "LocalBackends", what: str, name: str, alias: str) -> "InstallSpec":
    from remuda.gallery.resolve import ResolvedBuild, Unresolved, resolve
    from remuda.oci.reference import OciImage, parse_source
    from remuda.worker.depot.install_spec import is_source, spec_from_gallery, spec_from_source

    if is_source(what):
        source = parse_source(what)
        own = source.reference.repository.rpartition("/")[2] if isinstance(source, OciImage) else ""
        return spec_from_source(what, name or own, alias)
    if name or alias:
        raise Invalid(
            "--name and --alias are for images, archives and folders",
            hint="leave them out: a gallery names its backends",
        )
    readings, hardware = await machine.readings(), await machine.hardware()
    answer = resolve(readings, what, hardware)
    if isinstance(answer, Unresolved):  # An index may be older than the name.
        readings = await machine.readings(refresh=True)
        answer = resolve(readings, what, hardware)
    spec = spec_from_gallery(answer, readings)
    assert isinstance(answer, ResolvedBuild), "others were refused"
    for warning in answer.warnings:
        click.echo(one_line(f"warning: {warning}"), err=True)
    click.echo(one_line(answer.why), err=True)
    return spec


def _tell_standing(readings: "tuple[Reading, ...]") -> None:
    """What is not current, and what an index has that cannot be used."""
    from remuda.cli.backend_tables import complaint_lines

    now = SystemClock().now()
    for reading in readings:
        if reading.trouble:
            click.echo(one_line(f"warning: {reading.standing(now)}"), err=True)
        for line in complaint_lines(reading):
            click.echo(one_line(f"warning: {line}"), err=True)
