"""Builds a worker from its settings, with what runs backends on it, and runs it until it is stopped or
cancelled.
"""

import os
import platform
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus
from pydantic import SecretStr

from remuda import __version__
from remuda.assembly.local_backends import gallery_machine
from remuda.assembly.running import background, settle
from remuda.assembly.settings import WorkerSettings
from remuda.assembly.settings.worker import required_frontend, required_token
from remuda.assembly.sources import galleries_of, registries_of, storage_account
from remuda.bus.auth import (
    AuthSource,
    Login,
    TlsFiles,
    UserJwt,
    UserPassword,
    anonymous,
    creds_file,
    fixed,
    parse_servers,
)
from remuda.bus.client import BUS_BACKOFF, Bus
from remuda.bus.messages import Connected, Connecting, Down
from remuda.core import limits
from remuda.core.bus_reach import UnreachedBus
from remuda.core.clock import Clock, SystemClock
from remuda.core.entropy import Entropy, SystemEntropy
from remuda.core.errors import NodeRemoved
from remuda.fleet.model import ram_ceiling
from remuda.gallery.fetch import open_fetcher
from remuda.gallery.model import Gallery
from remuda.gallery.sources import Cache, FailureLog, Sources
from remuda.host.folder import DataFolder, write_json
from remuda.oci.auth import Keychain, docker_config_files
from remuda.oci.client import open_client
from remuda.oci.model import platform_of
from remuda.oci.transport import Registries
from remuda.s3.client import S3Storage
from remuda.worker.addresses import AddressSettings, backends_bind
from remuda.worker.backend_runtime import BackendRuntime, FetchAccess, RuntimeSettings
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.layout import DepotLayout
from remuda.worker.enrolment import BusPolicy, WorkerState
from remuda.worker.hardware.detect import HardwareInventory
from remuda.worker.hardware.host import SystemHost
from remuda.worker.identity import Introduction, boot_id, machine_id, node_name, node_secret
from remuda.worker.ports import BusTarget, Hear
from remuda.worker.service import MakeRoom, Site, Worker, WorkerConfig

log = structlog.get_logger(__name__)

_PORT_MAX = 65535
_FILE_IDLE_S = 15.0  # Who gives a model file, and sends nothing for so long, is not waited for.


@asynccontextmanager
async def open_backend_runtimes(
    settings: WorkerSettings, folder: DataFolder, config: WorkerConfig, inventory: HardwareInventory
) -> AsyncIterator[MakeRoom]:
    """Whatever an engine room needs is open within the block."""
    clock, entropy = SystemClock(), SystemEntropy()
    keys = Keychain(docker_config_files(os.environ), os.environ)
    places = DepotLayout.of(folder, settings.backends_path, settings.backends_system_path)
    cache = Cache(folder.worker / "galleries")
    failures = FailureLog()
    async with (
        open_client(clock, entropy, registries=registries_of(settings), keys=keys) as client,
        open_client(
            clock, entropy, registries=Registries(ca=settings.ca), idle_read_s=_FILE_IDLE_S
        ) as file_client,
        open_fetcher() as own_fetcher,
        open_fetcher(file_roots=()) as request_fetcher,  # A request must not read our files.
    ):
        depot = Depot(
            places,
            clock,
            client,
            platform_of(platform.system(), platform.machine()),
            require_integrity=settings.require_backend_integrity,
        )
        own = Sources(
            galleries_of(settings), fetcher=own_fetcher, cache=cache, clock=clock, failures=failures
        )

        def asked_for(galleries: tuple[Gallery, ...]) -> Sources:
            return Sources(galleries, fetcher=request_fetcher, cache=cache, clock=clock, failures=failures)

        def make_room(site: Site) -> BackendRuntime:
            return BackendRuntime(
                room_settings(settings, folder, config, site),
                depot,
                own,
                asked_for,
                lambda: gallery_machine(inventory),
                reached_at=site.reached_at,
                changed=site.changed,
                deliver=site.deliver,
                clock=clock,
                entropy=entropy,
                storage=storage_of(settings),
                fetches=FetchAccess(file_client, config.frontend_url, settings.storage_url),
                hardware=inventory,
            )

        yield make_room


def inventory_of(settings: WorkerSettings, models: Path) -> HardwareInventory:
    return HardwareInventory(SystemHost(), models, partial(ram_ceiling, settings.ram_budget))


def storage_of(settings: WorkerSettings) -> S3Storage | None:
    account = storage_account(settings)
    return None if account is None else S3Storage(account)


def room_settings(
    settings: WorkerSettings, folder: DataFolder, config: WorkerConfig, site: Site
) -> RuntimeSettings:
    first = site.listening.base_port
    last = settings.grpc_max_port if settings.grpc_max_port >= first else _PORT_MAX
    return RuntimeSettings(
        owner=config.introduction.machine_id,
        boot=config.introduction.boot_id,
        tokens=site.tokens,
        models=settings.models_path or folder.models,
        logs=folder.worker / "logs",
        ports=range(first, last + 1),
        bind=backends_bind(config.addresses, config.frontend_url),
        open_without_token=settings.insecure_no_token,
        environ=os.environ,
        secrets=_secrets(settings, config),
        backend_env=settings.backend_env,
        blobs_bytes_max=settings.depot_budget_bytes,
        blobs_unused=settings.depot_unused,
        model_files_budget=settings.model_files_budget,
        niceness=settings.backend_nice,
        yields_gpu=settings.yield_gpu,
    )


def _secrets(settings: WorkerSettings, config: WorkerConfig) -> tuple[str, ...]:
    """Whatever the settings hold as a secret, wherever it came from, and this node's own."""
    values = (*(getattr(settings, name) for name in type(settings).model_fields), config.secret)
    return tuple(value.get_secret_value() for value in values if isinstance(value, SecretStr))


NOT_YET: Final = "not connected yet"
OnState = Callable[[WorkerState], None]


class BusOfWorker:
    """A Bus in the words of worker.ports.WorkerBus."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock

    @property
    def trouble(self) -> str:
        match self._bus.state:
            case Connected():
                return ""
            case Connecting():
                unreached = self.unreached
                return f"{unreached}; is that port open?" if unreached else NOT_YET
            case Down(reason):
                return reason

    @property
    def unreached(self) -> UnreachedBus | None:
        match self._bus.state:
            case Connected():
                return None
            case Connecting(since):
                slow = self._clock.now() - since >= timedelta(seconds=limits.BUS_SLOW_S)
                return UnreachedBus.of(str(self._bus.servers), "no answer yet") if slow else None
            case Down(unreached=unreached):
                return unreached

    @property
    def changed(self) -> anyio.Event:
        return self._bus.changed

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        await self._bus.run(task_status=task_status)

    async def subscribe(self, subject: str, hear: Hear) -> None:
        await self._bus.subscribe(subject, hear, concurrent=True)

    async def publish(self, subject: str, payload: bytes) -> None:
        await self._bus.publish(subject, payload)

    def rotate(self) -> None:
        self._bus.rotate()


async def run_worker(
    settings: WorkerSettings,
    *,
    on_state: OnState,
    when_registered: Callable[[Worker], None] | None = None,
) -> None:
    """Ends when the frontend stops the worker; one that is cancelled stops in order. `on_state` is called
    with each state it enters, `when_registered` once."""
    folder = DataFolder(settings.data_dir)
    folder.prepare()
    with folder.held_by("worker"):
        folder.leaving.unlink(missing_ok=True)  # Of a `remuda leave` that was killed.
        login, entropy = _own_login(settings), SystemEntropy()
        config = _config(settings, folder, own_login=login is not None, entropy=entropy)
        inventory = inventory_of(settings, settings.models_path or folder.models)
        async with open_backend_runtimes(settings, folder, config, inventory) as make_room:
            worker = _assemble(settings, config, login, inventory, make_room)
            with _announced(folder, worker, config.frontend_url):

                def registered(worker: Worker) -> None:
                    _remember_node(folder, worker, config.frontend_url)
                    if when_registered is not None:
                        when_registered(worker)

                async with background(
                    partial(_tell, worker, on_state), partial(_once_registered, worker, registered)
                ):
                    settle()
                    await _run(worker, folder)


async def _run(worker: Worker, folder: DataFolder) -> None:
    """A worker whose node was removed has done what it was asked; a service manager is not to restart it."""
    try:
        await worker.run()
    except NodeRemoved as removal:
        log.warning("node_removed", reason=removal.message, hint=removal.hint)
        try:
            write_json(folder.removed, {"message": removal.message, "hint": removal.hint})
        except OSError as error:
            log.warning("removal_not_kept", path=str(folder.removed), reason=str(error))


@contextmanager
def _announced(folder: DataFolder, worker: Worker, frontend_url: str) -> Iterator[None]:
    """Tell `remuda doctor` on this machine where we are. What a killed worker leaves names a dead process."""
    where = {"pid": os.getpid(), "url": worker.http_url, "frontend": frontend_url}
    write_json(folder.worker_endpoint, where)
    try:
        yield
    finally:
        folder.worker_endpoint.unlink(missing_ok=True)


def _assemble(
    settings: WorkerSettings,
    config: WorkerConfig,
    login: AuthSource | None,
    inventory: HardwareInventory,
    make_room: MakeRoom,
) -> Worker:
    clock, entropy = SystemClock(), SystemEntropy()
    tls = TlsFiles(settings.nats_tls_ca, settings.nats_tls_cert, settings.nats_tls_key)
    name = f"worker-{config.introduction.name}"

    def open_bus(target: BusTarget) -> BusOfWorker:
        auth = login or partial(_issued_login, target)
        return BusOfWorker(
            Bus(target.url, auth, name=name, backoff=BUS_BACKOFF, entropy=entropy, clock=clock, tls=tls),
            clock,
        )

    return Worker(config, open_bus, inventory, clock=clock, entropy=entropy, make_room=make_room)


def _config(
    settings: WorkerSettings, folder: DataFolder, *, own_login: bool, entropy: Entropy
) -> WorkerConfig:
    return WorkerConfig(
        frontend_url=required_frontend(settings),
        token=required_token(settings),
        secret=node_secret(folder.worker, entropy),
        introduction=Introduction(
            name=node_name(settings.node_name, socket.gethostname(), os.getpid()),
            machine_id=machine_id(folder.worker, entropy),
            boot_id=boot_id(entropy),
            version=__version__,
            labels=settings.node_labels,
            max_replicas_per_model=settings.max_replicas_per_model,
            vram_budget=settings.vram_budget,
        ),
        heartbeat_interval=settings.heartbeat_interval,
        ca=settings.ca,
        addresses=AddressSettings(
            settings.addr,
            settings.serve_addr,
            settings.advertise_addr,
            settings.http_addr,
            settings.advertise_http_addr,
        ),
        bus=BusPolicy(
            url=settings.nats_url.get_secret_value() if settings.nats_url else "",
            own_login=own_login,
            require_auth=settings.nats_require_auth,
        ),
        leaves_for_good=folder.leaving.exists,
    )


def _own_login(settings: WorkerSettings) -> AuthSource | None:
    """Bus credentials of this worker's own settings; they come before what the registration brings."""
    if settings.nats_jwt is not None and settings.nats_user_seed is not None:
        return fixed(UserJwt(settings.nats_jwt.get_secret_value(), settings.nats_user_seed))
    if settings.nats_creds is not None:
        return creds_file(settings.nats_creds)
    if settings.nats_user:
        return fixed(UserPassword(settings.nats_user, settings.nats_password or SecretStr("")))
    in_url = parse_servers(settings.nats_url.get_secret_value()).login if settings.nats_url else None
    return None if in_url is None else fixed(in_url)


def _issued_login(target: BusTarget) -> Login:
    """What the registration brought; without it the URL may hold a login, or the bus wants none."""
    issued = target.credentials()
    return anonymous() if issued is None else UserJwt(issued.jwt, SecretStr(issued.seed))


async def _tell(
    worker: Worker, on_state: OnState, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    task_status.started()
    async for state in worker.state.changes():
        on_state(state)


def _remember_node(folder: DataFolder, worker: Worker, frontend_url: str) -> None:
    """For `remuda leave`, which may be run when the worker is stopped."""
    try:
        write_json(folder.registration, {"node_id": worker.state.value.node_id, "frontend": frontend_url})
        folder.removed.unlink(missing_ok=True)
    except OSError as error:
        log.warning("node_id_not_kept", path=str(folder.registration), reason=str(error))


async def _once_registered(
    worker: Worker,
    act: Callable[[Worker], None],
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    task_status.started()
    await worker.state.until(lambda state: state.node_id is not None)
    act(worker)
