"""`remuda leave`: take this machine out of the fleet that it joined."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from remuda.cli.commands import config_option, data_dir_option, examples, json_option
from remuda.cli.output import one_line
from remuda.core import limits
from remuda.core.hints import pasted

if TYPE_CHECKING:
    from remuda.host.folder import DataFolder

_POLL_S: Final = 0.1
FORGOTTEN: Final = ("joined.json", "endpoint.json", "registration.json", "removed.json")
"""What a worker keeps about its fleet, below its folder. The machine's id and secret stay: with them it
can come back under its name."""


@click.command(
    "leave",
    short_help="Remove this machine from its fleet.",
    epilog=examples("remuda leave", "remuda leave --data-dir /srv/remuda"),
)
@data_dir_option
@config_option
@json_option
def command(data_dir: str | None, config: str | None, as_json: bool) -> None:
    """Stop this machine's worker, notify the frontend, remove the service and the `remuda` command that the
    join line installed, and delete the settings of `remuda join`, token included. Installed backends and
    models stay."""
    from remuda.cli.options import data_folder
    from remuda.core.errors import Misconfigured
    from remuda.host.folder import read_json

    folder = data_folder({"data_dir": data_dir, "config": config}, os.environ)
    running = read_json(folder.worker_endpoint)
    if folder.endpoint.exists() and not folder.joined.exists():
        raise Misconfigured(
            "this data folder belongs to a frontend, which has not joined a fleet",
            hint="stop `remuda up` or `remuda frontend` instead",
        )
    if not folder.joined.exists() and not running:
        raise Misconfigured(
            f"this machine has not joined a fleet (data folder {folder.root})",
            hint="give the worker's data folder with --data-dir, if it has its own",
        )
    joined = read_json(folder.joined)
    name, url = str(joined.get("node_name") or os.uname().nodename), str(joined.get("register_to") or "")
    with _said_to_be_for_good(folder):
        service = _remove_service(folder.root.absolute())
        stopped = _stop_worker(folder, running.get("pid"))
    trouble = _tell_frontend(folder)
    for file in FORGOTTEN:
        (folder.worker / file).unlink(missing_ok=True)
    launcher = _remove_launcher()
    if as_json:
        document = {"node": name, "service_removed": service, "worker_stopped": stopped}
        left = {"frontend_not_told": trouble, "command_removed": launcher, "data_dir": str(folder.root)}
        click.echo(json.dumps({**document, **left}))
        return
    if service:
        click.echo(f"{service} is stopped and removed.")
    if stopped:
        click.echo("The worker has stopped.")
    of_whom = f" of {url}" if url else ""
    click.echo(
        one_line(f"Node {name} has left the fleet{of_whom}. Its saved settings and token were deleted.")
    )
    if trouble:
        click.echo(f"  The frontend could not be notified: {one_line(trouble)}")
    click.echo(f"  The frontend still lists this node; there, run: remuda nodes remove {pasted(name)}")
    if launcher:
        click.echo(f"  The command {launcher} is removed; the program itself is in {sys.prefix}.")
    click.echo(f"  Backends and models stay in {folder.root}; remove that folder if they are not needed.")


@contextmanager
def _said_to_be_for_good(folder: "DataFolder") -> Iterator[None]:
    """The worker looks for this file when it says goodbye: a service manager stops it with a bare signal."""
    folder.leaving.parent.mkdir(parents=True, exist_ok=True)
    folder.leaving.touch()
    try:
        yield
    finally:
        folder.leaving.unlink(missing_ok=True)


def _tell_frontend(folder: "DataFolder") -> str:
    """Say goodbye for good, as the node that the worker was: it may have been stopped, or killed, before.
    Returns why it failed; empty on success, or if there is no frontend to tell."""
    from pydantic import SecretStr

    from remuda.cli.client import AdminClient
    from remuda.cli.target import Target
    from remuda.core.entropy import SystemEntropy
    from remuda.core.errors import NotFound, RemudaError, Unauthorized
    from remuda.host.folder import read_json
    from remuda.worker.identity import node_secret

    was, joined = read_json(folder.registration), read_json(folder.joined)
    node_id, url, ca = was.get("node_id"), was.get("frontend"), joined.get("ca")
    if not isinstance(node_id, str) or not isinstance(url, str):
        return ""
    secret, token = node_secret(folder.worker, SystemEntropy()), joined.get("registration_token")
    trouble = ""
    # A frontend that knows nothing of secrets takes the registration token.
    for bearer in (secret, *([SecretStr(token)] if isinstance(token, str) else ())):
        target = Target(url.rstrip("/"), bearer, Path(ca) if isinstance(ca, str) else None)
        try:
            with AdminClient(target, limits.LEAVE_CALL_S) as client:
                client.call("POST", "api", "node", node_id, "deregister", body={"for_good": True})
        except Unauthorized as error:
            trouble = error.message
        except NotFound:
            return ""  # It was removed there.
        except RemudaError as error:
            return error.message
        else:
            return ""
    return trouble


def _remove_launcher() -> str:
    """Where the command was that the join line made, if it ran this very program; empty: there is none."""
    from remuda.host.bootstrap import LAUNCHER_MARK, PROGRAM

    program = Path(sys.prefix) / "bin" / PROGRAM
    for folder in (Path.home() / ".local" / "bin", Path("/usr/local/bin")):
        launcher = folder / PROGRAM
        try:
            text = launcher.read_text()
            if LAUNCHER_MARK not in text or f'"{program}"' not in text:
                continue
            launcher.unlink()
        except (OSError, ValueError):
            continue
        return str(launcher)
    return ""


def _remove_service(data_dir: Path) -> str:
    """The name of the service that was removed; empty when there was none."""
    from remuda.cli import service_unit
    from remuda.core.errors import Misconfigured

    try:
        planned = service_unit.plan(data_dir)
    except Misconfigured:
        return ""  # No manager, hence no service.
    return planned.name if service_unit.remove(planned) else ""


def _stop_worker(folder: "DataFolder", pid: object) -> bool:
    """Wait until it has taken its leave of the frontend. One that a service ran has ended by now: False."""
    from remuda.core.clock import SystemClock
    from remuda.core.errors import PeerFailed

    if not isinstance(pid, int) or not folder.is_held_by("worker"):  # The number may be another's by now.
        return False
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise PeerFailed(
            f"the worker (process {pid}) belongs to another user and was not stopped",
            hint="run `remuda leave` as that user; nothing was changed",
        ) from None
    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + limits.WORKER_STOP_S
    while folder.is_held_by("worker"):
        if clock.monotonic() >= deadline:
            raise PeerFailed(
                f"the worker (process {pid}) does not stop", hint="nothing was changed; try again"
            )
        pause.wait(_POLL_S)
    return True
