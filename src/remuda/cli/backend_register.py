"""`remuda backends register` and `switch-back`: what needs neither a gallery nor an image."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from remuda.cli.backends import Here, local_command
from remuda.cli.commands import examples
from remuda.cli.output import one_line
from remuda.core.errors import Conflict, Invalid, NotFound
from remuda.core.hints import pasted

if TYPE_CHECKING:
    from remuda.assembly.local_backends import LocalBackends
    from remuda.worker.depot.depot import Depot, Installed
    from remuda.worker.depot.listing import ListedBackend
    from remuda.worker.launching.manifest import BackendManifest


@click.command(
    "register",
    short_help="Register a server on this machine as a backend, by one YAML file.",
    epilog=examples(
        "remuda backends register vllm.yaml",
        "remuda backends register /srv/models/remuda.yaml --name ollama",
        "",
        "# vllm.yaml",
        "protocol: http",
        'command: [vllm, serve, "{model_path}", --host, 127.0.0.1, --port, "{port}"]',
        "start_limit: 30m",
    ),
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", default="", help="Register it under this name. Default: the file's, without .yaml.")
@local_command
def register(here: Here, file: Path, name: str) -> None:
    """Register a server that is already on this machine as a backend: FILE names the command that starts it,
    and the server has an OpenAI-compatible API. `remove --local` undoes it."""
    import anyio

    from remuda.worker.depot.layout import checked_name
    from remuda.worker.launching.manifest import FILE_NAME, LIMITS, parse_manifest

    if not name and file.name == FILE_NAME:
        raise Invalid(f"a file called {FILE_NAME} does not name a backend", hint="add --name NAME")
    name = checked_name(name or file.stem)
    with file.open("rb") as opened:
        content = opened.read(LIMITS.bytes + 1)
    _check_stands_alone(parse_manifest(content, str(file)), file)
    machine = here.machine()
    machine.data.prepare()
    done = anyio.run(_register, machine.depot(), name, content.decode("utf-8-sig"))
    if here.as_json:
        click.echo(json.dumps({"name": done.name, "folder": str(done.folder), "changed": done.changed}))
    else:
        click.echo(one_line(f"{done.name}: {'registered' if done.changed else 'registered already'}"))


@click.command(
    "switch-back",
    short_help="Go back to the previous version.",
    epilog=examples("remuda backends switch-back llama-cpp"),
)
@click.argument("name")
@local_command
def switch_back(here: Here, name: str) -> None:
    """Go back to the previous version of a backend on this machine. The present one is kept, so a second call
    undoes the first. The previous version is kept until a newer one has run."""
    import anyio

    folder = anyio.run(_switch_back, here.machine(), name)
    line = one_line(f"{folder}: switched back to the previous version")
    click.echo(json.dumps({"name": folder}) if here.as_json else line)


def _check_stands_alone(manifest: "BackendManifest", file: Path) -> None:
    """A backend without an image has nothing in its folder that could be started."""
    from remuda.worker.processes.model import Protocol

    if manifest.protocol is Protocol.GRPC:
        raise Invalid(
            f"{file}: protocol: grpc needs a folder with a run.sh",
            hint="install that folder: remuda backends pull FOLDER",
        )
    [program, *_] = manifest.command[0].templates
    written = "".join(part for part in program.parts if isinstance(part, str))
    if os.sep in written and not os.path.isabs(written):
        raise Invalid(
            f"{file}: command: {written} is looked up in the folder of the backend, which is empty",
            hint="write its whole path, or a name that is on the worker's PATH",
        )


async def _register(depot: "Depot", name: str, manifest: str) -> "Installed":
    found = (await depot.installed()).get(name)
    if found is not None and not _was_registered(found, name):
        raise Conflict(
            f"{name} is already the name of an installed backend",
            hint=f"choose another with --name, or first: remuda backends remove --local {pasted(name)}",
        )
    return await depot.register(name, manifest)


def _was_registered(found: "ListedBackend", name: str) -> bool:
    """It is a folder of that name, not an alias, and came from nowhere else."""
    from remuda.worker.depot.layout import MANIFEST_FILE

    own = found.folder.name == name and not found.system
    return own and found.runs == MANIFEST_FILE and not found.metadata.uri


async def _switch_back(machine: "LocalBackends", name: str) -> str:
    """The folder that was meant by the name."""
    depot = machine.depot()
    hardware = await machine.hardware()
    found = (await depot.installed(hardware.effective_capability)).get(name)
    if found is None or found.system:
        raise NotFound(
            f"{name} is not installed on this machine",
            hint="`remuda backends list --local` shows what there is",
        )
    await depot.switch_back(found.folder.name)
    return found.folder.name
