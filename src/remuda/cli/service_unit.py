"""A worker that starts with the machine: a systemd unit, or a launchd job.

The unit holds no secret: what the worker needs was saved in its data folder by `remuda join`.
"""

import hashlib
import os
import plistlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platformdirs import user_data_path

from remuda.cli.exits import Exit
from remuda.core import limits
from remuda.core.errors import Misconfigured, PeerFailed
from remuda.core.hints import pasted

_COMMAND_S: Final = 60.0
_STOP_S: Final = int(limits.WORKER_STOP_S)
_RESTART_S: Final = 5
# A wrong setting or token does not get better by trying again.
_HOPELESS: Final = (Exit.MISUSED, Exit.REFUSED)


@dataclass(frozen=True, slots=True)
class Service:
    """What to write where, what to run then, and what a person should know."""

    name: str
    path: Path
    content: str
    forget: Sequence[str]  # Stops what an earlier installation started; there may be nothing to stop.
    commands: Sequence[Sequence[str]]
    disable: Sequence[Sequence[str]]  # Before its file is removed; it may not run, or not be enabled.
    reload: Sequence[Sequence[str]]  # After that.
    notes: Sequence[str]


def plan(data_dir: Path) -> Service:
    """The service for this machine's own manager; Misconfigured, saying what to do, where there is none."""
    root = os.geteuid() == 0
    command = (sys.executable, "-m", "remuda", "worker", "--data-dir", str(data_dir))
    if sys.platform == "darwin":
        return launchd_service(command, data_dir, Path.home(), os.getuid(), system=root)
    # The folder is systemd's own sign that it runs this machine; the programs may exist without it.
    if shutil.which("systemctl") and Path("/run/systemd/system").is_dir():
        return systemd_service(command, data_dir, Path.home(), system=root)
    raise Misconfigured(
        "this machine runs neither systemd nor launchd, so no service can be installed",
        hint="join without --service first; then have `remuda worker --data-dir "
        f"{pasted(str(data_dir))}` started at boot by other means",
    )


def start_command(data_dir: Path) -> str:
    """What starts the service of this data folder; empty where none is installed."""
    try:
        planned = plan(data_dir)
    except Misconfigured:
        return ""
    return " ".join(planned.commands[-1]) if planned.path.exists() else ""


def install(service: Service) -> None:
    """Write the unit and have it started; PeerFailed with what the manager said when that fails. A unit that
    is new is removed again then."""
    new = not service.path.exists()
    try:
        service.path.parent.mkdir(parents=True, exist_ok=True)
        service.path.write_text(service.content)
    except OSError as error:
        raise Misconfigured(f"{service.path} cannot be written: {error.strerror}") from None
    _run(service.forget)
    for command in service.commands:
        failure = _run(command)
        if failure:
            if new:
                remove(service)
            raise PeerFailed(
                f"`{' '.join(command)}` failed: {failure}",
                hint="nothing was installed; `remuda join` without --service runs in the foreground",
            )


def remove(service: Service) -> bool:
    """Stop the service and forget it; False when it is not installed."""
    if not service.path.exists():
        return False
    for command in service.disable:
        _run(command)
    try:
        service.path.unlink()
    except OSError as error:
        raise Misconfigured(f"{service.path} cannot be removed: {error.strerror}") from None
    for command in service.reload:
        _run(command)
    return True


@contextmanager
def paused(service: Service) -> Iterator[None]:
    """Stop the service, if it is installed, while the block runs; start it again if the block fails."""
    if not service.path.exists():
        yield
        return
    _run(service.forget)
    try:
        yield
    except BaseException:
        _run(service.commands[-1])
        raise


def systemd_service(command: Sequence[str], data_dir: Path, home: Path, *, system: bool) -> Service:
    name = f"{unit_name(data_dir)}.service"
    folder = Path("/etc/systemd/system") if system else home / ".config/systemd/user"
    manager = ("systemctl",) if system else ("systemctl", "--user")
    journal = "journalctl" if system else "journalctl --user"
    notes = [f"status: {' '.join(manager)} status {name}", f"log: {journal} -u {name}"]
    if not system:
        notes.append("to keep it running while you are not logged in: loginctl enable-linger")
    return Service(
        name,
        folder / name,
        systemd_unit(command, system=system),
        (*manager, "stop", name),
        ((*manager, "daemon-reload"), (*manager, "enable", "--now", name)),
        ((*manager, "disable", "--now", name),),
        ((*manager, "daemon-reload"),),
        notes,
    )


def systemd_unit(command: Sequence[str], *, system: bool) -> str:
    # A user's manager knows nothing of the network's state; the worker waits for the frontend by itself.
    network = "Wants=network-online.target\nAfter=network-online.target\n" if system else ""
    return f"""\
[Unit]
Description=Remuda worker
{network}
[Service]
ExecStart={" ".join(_systemd_quoted(word) for word in command)}
Restart=on-failure
RestartSec={_RESTART_S}
RestartPreventExitStatus={" ".join(str(int(code)) for code in _HOPELESS)}
TimeoutStopSec={_STOP_S}
KillMode=mixed

[Install]
WantedBy={"multi-user.target" if system else "default.target"}
"""


def launchd_service(command: Sequence[str], data_dir: Path, home: Path, uid: int, *, system: bool) -> Service:
    name = unit_name(data_dir)
    folder = Path("/Library/LaunchDaemons") if system else home / "Library/LaunchAgents"
    domain = "system" if system else f"gui/{uid}"
    log = data_dir / "worker.log"
    path = folder / f"{name}.plist"
    return Service(
        name,
        path,
        launchd_plist(name, command, log),
        ("launchctl", "bootout", f"{domain}/{name}"),
        (
            ("launchctl", "enable", f"{domain}/{name}"),
            ("launchctl", "bootstrap", domain, str(path)),
        ),
        (("launchctl", "bootout", f"{domain}/{name}"), ("launchctl", "disable", f"{domain}/{name}")),
        (),
        [f"status: launchctl print {domain}/{name}", f"log: {log}"],
    )


def launchd_plist(name: str, command: Sequence[str], log: Path) -> str:
    job = {
        "Label": name,
        "ProgramArguments": list(command),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": _RESTART_S,
        "ExitTimeOut": _STOP_S,
        "StandardOutPath": str(log),
        "StandardErrorPath": str(log),
    }
    return plistlib.dumps(job).decode()


def unit_name(data_dir: Path) -> str:
    """One per data folder: two workers on a machine are two services."""
    if data_dir == user_data_path("remuda"):
        return "remuda-worker"
    return f"remuda-worker-{hashlib.sha256(str(data_dir).encode()).hexdigest()[:8]}"


def _run(command: Sequence[str]) -> str:
    """Why the command failed; empty when it did not."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_COMMAND_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def _systemd_quoted(word: str) -> str:
    """One word of a command line, taken literally: no escapes, specifiers or variables."""
    for special, literal in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        word = word.replace(special, literal)
    return f'"{word}"'
