"""Builds what runs backends on a worker."""

import os
import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import SecretStr

from remuda.assembly.local_backends import gallery_machine
from remuda.assembly.settings import WorkerSettings
from remuda.assembly.sources import galleries_of, registries_of
from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.gallery.fetch import open_fetcher
from remuda.gallery.model import Gallery
from remuda.gallery.sources import Cache, FailureLog, Sources
from remuda.host.folder import DataFolder
from remuda.oci.auth import Keychain, docker_config_files
from remuda.oci.client import open_client
from remuda.oci.model import platform_of
from remuda.worker.addresses import backends_bind
from remuda.worker.backend_runtime import BackendRuntime, RuntimeSettings
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.layout import DepotLayout
from remuda.worker.hardware.detect import HardwareInventory
from remuda.worker.service import MakeRoom, Site, WorkerConfig

_PORT_MAX = 65535


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
            )

        yield make_room


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
    )


def _secrets(settings: WorkerSettings, config: WorkerConfig) -> tuple[str, ...]:
    """Whatever the settings hold as a secret, wherever it came from, and this node's own."""
    values = (*(getattr(settings, name) for name in type(settings).model_fields), config.secret)
    return tuple(value.get_secret_value() for value in values if isinstance(value, SecretStr))
