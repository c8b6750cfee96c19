"""What `remuda doctor` looks at. Each check stands alone, is bounded in time, and never ends the others."""

import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from remuda import __version__
from remuda.assembly.addresses import bind_host
from remuda.assembly.settings import CommonSettings, FrontendSettings, UpSettings, WorkerSettings
from remuda.cli import findings, service_unit
from remuda.cli.client import AdminClient, ApiAnswer
from remuda.cli.findings import Finding, Holder, ok, problem, warning
from remuda.cli.invocation import ClientOptions
from remuda.cli.options import data_folder, resolve_settings, unknown_variables
from remuda.cli.target import EndedHere, NotRunningHere, Target, alive, find_target
from remuda.core.clock import Clock, SystemClock
from remuda.core.errors import (
    FrontendUnreachable,
    Misconfigured,
    NotFound,
    Rejected,
    RemudaError,
    Unauthorized,
)
from remuda.core.os_errors import os_reason
from remuda.host.folder import DataFolder, read_json
from remuda.host.ports import listen
from remuda.model_installs.library import UNUSED, ModelLibrary
from remuda.wire.admin import Unready
from remuda.wire.codec import decode
from remuda.wire.console import AttentionItems
from remuda.wire.operations import BackendFits, OpView, OpViews
from remuda.wire.serving import ModelItems
from remuda.worker.addresses import AddressSettings, chosen_base_port, split
from remuda.worker.hardware.detect import detect
from remuda.worker.hardware.host import SystemHost

CHECK_S: Final = 15.0
_CALL_S: Final = 8.0  # A small machine that starts a model takes seconds to answer.
_NATS_PORT: Final = 4222
_API: Final = "API"
_OPS_MAX: Final = 20  # Operations that are looked at, the newest.


@dataclass(frozen=True, slots=True)
class Patient:
    """The machine that is looked at, as the command line and the environment describe it."""

    options: ClientOptions
    config: str | None
    environ: Mapping[str, str]
    clock: Clock

    @property
    def flags(self) -> Mapping[str, object]:
        return {"data_dir": self.options.data_dir, "config": self.config}

    @property
    def folder(self) -> DataFolder:
        return data_folder(self.flags, self.environ)

    @property
    def model(self) -> type[CommonSettings]:
        """A machine that has joined a frontend, and is none itself, runs a worker."""
        works = self.folder.joined.exists() or self.folder.worker_endpoint.exists()
        return WorkerSettings if works and not self.folder.endpoint.exists() else UpSettings

    def settings(self) -> CommonSettings:
        return resolve_settings(self.model, self.flags, self.environ).values

    def target(self) -> Target:
        """The frontend that commands here talk to; on a machine that joined one, that one."""
        try:
            return find_target(self.options, self.environ)
        except NotRunningHere:
            settings = self.settings()
            if not isinstance(settings, WorkerSettings):
                raise
            url = settings.register_to or read_json(self.folder.worker_endpoint).get("frontend")
            if not isinstance(url, str) or not url:
                raise
            source = "the settings of this machine's worker"
            return Target(url.rstrip("/"), None, settings.ca, url_source=source)


Check = Callable[[Patient], Sequence[Finding]]


def check_settings(patient: Patient) -> list[Finding]:
    strays = findings.variables(unknown_variables(patient.environ))
    try:
        patient.settings()
    except Misconfigured as error:
        return [*strays, problem("settings", error.message, error.hint or "remuda config check says more")]
    return [*strays, ok("settings", "all are valid")]


def check_folder(patient: Patient) -> list[Finding]:
    root = patient.folder.root
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        remedy = "choose another with --data-dir, or make it writable for this user"
        return [problem("data folder", f"{existing} cannot be written", remedy)]
    made = f"{root}" if existing == root else f"{root} does not exist yet and can be created"
    found = [ok("data folder", made), findings.disk(str(root), shutil.disk_usage(existing).free)]
    found += _unused_downloads(patient.folder)
    models = _models_path(patient)
    return found if models is None or models.is_dir() else [*found, findings.models_folder(models)]


def _unused_downloads(folder: DataFolder) -> list[Finding]:
    if not folder.model_store.is_dir():
        return []
    return findings.unused_downloads(ModelLibrary(folder.model_store, folder.models).unused_bytes(), UNUSED)


def _models_path(patient: Patient) -> Path | None:
    """The folder that was chosen; None: the one in the data folder. Of a frontend that runs, the one that it
    was started with."""
    running = read_json(patient.folder.endpoint).get("models")
    if isinstance(running, str):
        return None if Path(running) == patient.folder.models else Path(running)
    settings = patient.settings()
    return settings.models_path if isinstance(settings, FrontendSettings | WorkerSettings) else None


def check_ports(patient: Patient) -> list[Finding]:
    """Of a frontend that runs, the port that it has; it may have been started with another than is set."""
    settings, ours = patient.settings(), _own_processes(patient.folder)
    running = read_json(patient.folder.endpoint)
    taken = running.get("port") if running.get("pid") in ours else None
    return [
        findings.port(use, number, trouble, _holder(number, ours) if trouble else None, setting)
        for use, host, set_number, setting in _ports(settings)
        for number in (taken if use == _API and isinstance(taken, int) else set_number,)
        for trouble in (_why_not(host, number),)
    ]


def check_frontend(patient: Patient) -> list[Finding]:
    python = ".".join(str(part) for part in sys.version_info[:3])
    try:
        target = patient.target()
        with AdminClient(target, _CALL_S) as client:
            alive_answer = client.probe("GET", "healthz")
            client.require_frontend(alive_answer)
            received = patient.clock.now()
            ready = client.probe("GET", "readyz")
            theirs = _frontend_version(client)
    except NotRunningHere as error:
        # A folder that no frontend ever held belongs to none.
        stopped = isinstance(error, EndedHere) or patient.folder.was_held_by("frontend")
        verdict = problem if stopped else warning
        absent = _starting(patient.folder) or verdict("frontend", error.message, error.hint)
        return [findings.versions(__version__, python, None), absent]
    except RemudaError as error:
        return [findings.versions(__version__, python, None), problem("frontend", error.message, error.hint)]
    found = [findings.versions(__version__, python, theirs), *_answering(target, alive_answer)]
    if alive_answer.date is not None:
        found.append(findings.clock(received - alive_answer.date))
    return [*found, *findings.readiness(_unready(ready))]


def check_bus(patient: Patient) -> list[Finding]:
    """Whether an external NATS server can be reached from here; a bundled one is the frontend's concern."""
    url = patient.settings().nats_url
    if url is None:
        return []
    return [_reached(host, port) for host, port in _bus_addresses(url)]


def check_worker(patient: Patient) -> list[Finding]:
    """The worker of this machine, if it is to have one: whether it runs, and can be commanded."""
    folder = patient.folder
    endpoint = read_json(folder.worker_endpoint)
    pid, url = endpoint.get("pid"), endpoint.get("url")
    if isinstance(pid, int) and isinstance(url, str) and alive(pid):
        return [findings.worker(_worker_trouble(url), pid)]
    frontend, removal = read_json(folder.endpoint), read_json(folder.removed)
    if removal:
        own = bool(frontend.get("starts_worker"))
        remedy = "restart remuda up: it registers again" if own else str(removal.get("hint", ""))
        return [findings.node_removed(str(removal.get("message", "")), remedy)]
    parent = frontend.get("pid")
    if frontend.get("starts_worker") and isinstance(parent, int) and alive(parent):
        return [findings.own_worker_stopped(parent, _why_own_worker_ended(folder))]
    if folder.endpoint.exists() and not endpoint:
        return []  # A frontend; where it has a worker of its own, it starts that.
    if not folder.joined.exists() and not endpoint:
        return []
    return [findings.worker_stopped(service_unit.start_command(folder.root.absolute()) or "remuda worker")]


def check_gpu(patient: Patient) -> list[Finding]:
    return findings.gpu(detect(SystemHost(), patient.folder.root))


def check_nodes(patient: Patient) -> list[Finding]:
    try:
        with AdminClient(patient.target(), _CALL_S) as client:
            _, nodes = client.nodes()
    except FrontendUnreachable:
        return []  # The check of the frontend has said so.
    except Unauthorized as error:
        if client.has_no_key and patient.model is WorkerSettings:
            return [ok("nodes", "not looked at: listing them needs an API key, and a worker needs none")]
        return [warning("nodes", f"the nodes cannot be listed: {error.message}", error.hint)]
    return findings.fleet(nodes)


def check_operations(patient: Patient) -> list[Finding]:
    try:
        with AdminClient(patient.target(), _CALL_S) as client:
            listed = client.get("api", "ops", state="live", limit=str(_OPS_MAX)).read(OpViews)
            ops = [client.get("api", "ops", op.id).read(OpView) for op in listed.operations]
            _, nodes = client.nodes() if ops else (None, [])
    except (FrontendUnreachable, NotFound, Unauthorized):
        return []  # Other checks have said so, or it has just been put away.
    return findings.operations(ops, nodes)


def check_models(patient: Patient) -> list[Finding]:
    try:
        with AdminClient(patient.target(), _CALL_S) as client:
            answer = client.get("api", "models")
            listed, now = answer.read(ModelItems), answer.date or SystemClock().now()
            query = {"kind": "install_model", "state": "failed", "limit": str(_OPS_MAX)}
            failed = client.get("api", "ops", **query).read(OpViews).operations
            return [
                *findings.models(listed.unusable),
                *findings.failed_installs(failed, {one.name for one in listed.models}, now),
                *findings.storage(listed.storage_trouble),
            ]
    except (FrontendUnreachable, NotFound, Unauthorized):
        return []  # Other checks have said so.


def check_attention(patient: Patient) -> list[Finding]:
    """What is left of what the frontend says needs a person: disks, failed operations, drift."""
    try:
        with AdminClient(patient.target(), _CALL_S) as client:
            needed = client.get("api", "attention").read(AttentionItems).attention
            query = {"kind": "install_model", "state": "failed", "limit": str(_OPS_MAX)}
            told = client.get("api", "ops", **query).read(OpViews).operations if needed else ()
    except (FrontendUnreachable, NotFound, Unauthorized):
        return []  # Other checks have said so, or it is an older frontend.
    return findings.attention(needed, {one.id for one in told})


def check_galleries(patient: Patient) -> list[Finding]:
    """What can be installed; the frontend reads them, and has its own network."""
    try:
        with AdminClient(patient.target(), _CALL_S) as client:
            return findings.galleries(client.get("api", "backends", "fits").read(BackendFits).unread)
    except (FrontendUnreachable, NotFound, Unauthorized):
        return []  # Other checks have said so, or it is an older frontend.


CHECKS: Final[Mapping[str, Check]] = {
    "settings": check_settings,
    "data folder": check_folder,
    "ports": check_ports,
    "frontend": check_frontend,
    "bus": check_bus,
    "worker": check_worker,
    "gpu": check_gpu,
    "nodes": check_nodes,
    "operations": check_operations,
    "models": check_models,
    "attention": check_attention,
    "galleries": check_galleries,
}


def examine(
    patient: Patient, checks: Mapping[str, Check] = CHECKS, limit_s: float = CHECK_S
) -> list[Finding]:
    """All findings, in the order of the checks, which run side by side; each gets `limit_s`."""
    found: dict[str, Sequence[Finding]] = {}

    def run(name: str, check: Check) -> None:
        found[name] = _isolated(name, check, patient)

    # Daemons, so that a check that never returns (a wedged driver) does not keep the command from ending.
    threads = {
        name: threading.Thread(target=run, args=(name, check), daemon=True) for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    started = patient.clock.monotonic()
    for thread in threads.values():
        thread.join(max(0.0, started + limit_s - patient.clock.monotonic()))
    late = {
        name: [problem(name, f"the check took longer than {limit_s:g} s", "something hangs")]
        for name in checks
    }
    return [finding for name in checks for finding in found.get(name, late[name])]


def _isolated(name: str, check: Check, patient: Patient) -> Sequence[Finding]:
    try:
        return check(patient)
    except Misconfigured:
        return []  # A setting that this check needs; the check that is about it has said so.
    except RemudaError as error:
        return [problem(name, f"could not be checked: {error.message}", error.hint)]
    except Exception as error:
        return [problem(name, f"the check itself failed: {error!r}", "please report it")]


# Ports


def _ports(settings: CommonSettings) -> Iterator[tuple[str, str, int, str]]:
    """Use, host, port and setting of each port that was chosen; others are picked free at start."""
    if isinstance(settings, FrontendSettings):
        if settings.port:
            yield _API, bind_host(settings), settings.port, "--port"
        if settings.nats_port and settings.nats_url is None:
            yield "bundled NATS server", bind_host(settings), settings.nats_port, "--nats-port"
    if isinstance(settings, WorkerSettings):
        base_port = chosen_base_port(AddressSettings(settings.addr, settings.serve_addr))
        if base_port:
            yield "backends", "0.0.0.0", base_port, "--addr"
        host, http_port = split(settings.http_addr)
        if http_port:
            yield "worker", host or "0.0.0.0", http_port, "--http-addr"


def _why_not(host: str, port: int) -> str:
    try:
        listen(host, port).close()
    except Misconfigured as error:
        return error.message
    return ""


def _own_processes(folder: DataFolder) -> frozenset[int]:
    """The processes that say of themselves that they use this data folder."""
    pids: list[object] = [read_json(folder.endpoint).get("pid")]
    for lock in folder.root.glob("*.lock"):
        text = lock.read_text().strip()
        pids.append(int(text) if text.isdigit() else None)
    return frozenset(pid for pid in pids if isinstance(pid, int) and alive(pid))


def _holder(port: int, ours: frozenset[int]) -> Holder | None:
    """Who listens there; None where the system does not tell."""
    import psutil

    try:
        listeners = [
            connection.pid
            for connection in psutil.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        ]
        if not listeners or listeners[0] is None:
            return None
        process = psutil.Process(listeners[0])
        family = {process.pid, *(parent.pid for parent in process.parents())}
        return Holder(process.pid, process.name(), bool(family & ours))
    except psutil.Error:
        return None


# Frontend and bus


def _starting(folder: DataFolder) -> Finding | None:
    if not folder.is_held_by("frontend"):
        return None
    text = (folder.root / "frontend.lock").read_text().strip()
    return findings.starting(int(text) if text.isdigit() else None)


def _answering(target: Target, answer: ApiAnswer) -> list[Finding]:
    if answer.status == 200:
        return [ok("frontend", f"answers at {target.shown}")]
    remedy = "check that this is the address of a Remuda frontend"
    return [problem("frontend", f"{target.shown} answers, but with HTTP status {answer.status}", remedy)]


def _worker_trouble(url: str) -> str:
    """Why the worker at this address cannot be commanded; empty when it can."""
    try:
        with AdminClient(Target(url), _CALL_S) as client:
            answer = client.probe("GET", "readyz")
    except RemudaError as error:
        return error.message
    if answer.status == 200:
        return ""
    text = answer.body.decode(errors="replace")
    # The reason stands in brackets, behind a sentence that peers know.
    return text.partition("(")[2].removesuffix(")") or text


def _why_own_worker_ended(folder: DataFolder) -> str:
    """Empty: not known; it may be about to start. On a full disk it cannot be written down."""
    reason = read_json(folder.worker_ending).get("reason")
    if isinstance(reason, str) and reason:
        return reason
    try:
        folder.prepare()
    except Misconfigured as error:
        return error.message
    return ""


def _unready(ready: ApiAnswer) -> Unready | None:
    if ready.status == 200:
        return None
    try:
        return decode(Unready, ready.body)
    except Rejected:
        return Unready(reason=f"HTTP status {ready.status}")


def _frontend_version(client: AdminClient) -> str | None:
    """From its API description, which is open to all."""
    answer = client.probe("GET", "openapi.json")
    try:
        return str(json.loads(answer.body)["info"]["version"])
    except (ValueError, KeyError, TypeError):
        return None


def _bus_addresses(url: SecretStr) -> Iterator[tuple[str, int]]:
    for one in url.get_secret_value().split(","):
        parts = urlsplit(one.strip() if "//" in one else f"//{one.strip()}")
        yield parts.hostname or "localhost", parts.port or _NATS_PORT


def _reached(host: str, port: int) -> Finding:
    try:
        socket.create_connection((host, port), timeout=_CALL_S).close()
    except OSError as error:
        remedy = "check that the NATS server runs there and that no firewall is in between"
        return problem("bus", f"{host}:{port} cannot be reached: {os_reason(error)}", remedy)
    return ok("bus", f"{host}:{port} can be reached")
