"""Builds what commands about this machine's own backends use: no frontend is asked."""

import os
import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from remuda.assembly.settings import WorkerSettings
from remuda.assembly.sources import galleries_of, registries_of
from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.log import configure
from remuda.core.settings import ResolvedSettings
from remuda.gallery.fetch import open_fetcher
from remuda.gallery.model import Gallery, MachineProfile, Reading
from remuda.gallery.sources import Cache, Sources
from remuda.host.folder import DataFolder
from remuda.oci.auth import Keychain, docker_config_files
from remuda.oci.client import open_client
from remuda.oci.model import platform_of
from remuda.worker.depot.depot import Collected, Depot, collect
from remuda.worker.depot.layout import DepotLayout
from remuda.worker.hardware.detect import HardwareInventory
from remuda.worker.hardware.host import SystemHost


@dataclass(frozen=True, slots=True)
class LocalBackends:
    """This machine's settings, and what follows from them."""

    settings: WorkerSettings
    data: DataFolder
    places: DepotLayout

    @classmethod
    def of(cls, resolved: ResolvedSettings[WorkerSettings]) -> "LocalBackends":
        settings = resolved.values
        # The command prints what matters; the log is for those who ask for it.
        level = "error" if resolved.origins["log_level"] == "default" else settings.log_level
        configure(level, settings.log_format)
        data = DataFolder(settings.data_dir)
        return cls(
            settings, data, DepotLayout.of(data, settings.backends_path, settings.backends_system_path)
        )

    @property
    def galleries(self) -> tuple[Gallery, ...]:
        return galleries_of(self.settings)

    async def hardware(self) -> MachineProfile:
        """What the choice of a build depends on."""
        models = self.settings.models_path or self.data.models
        return await gallery_machine(HardwareInventory(SystemHost(), models))

    async def readings(self, *, refresh: bool = False) -> tuple[Reading, ...]:
        """What the galleries offer; those that cannot be reached answer from their last copy. `refresh` asks
        them even where that is young."""
        cache = Cache(self.data.worker / "galleries")
        async with open_fetcher() as fetcher:
            sources = Sources(self.galleries, fetcher=fetcher, cache=cache, clock=SystemClock())
            return await sources.read(refresh=refresh)

    def depot(self) -> Depot:
        """To look and to remove."""
        return Depot(self.places, SystemClock())

    async def collect(
        self,
        depot: Depot,
        *,
        budget_bytes: int | None = None,
        unused: timedelta | None = None,
        dry_run: bool = False,
    ) -> Collected:
        """Remove what is not needed; what is not given comes from the settings."""
        return await collect(
            depot,
            SystemClock(),
            budget_bytes=self.settings.depot_budget_bytes if budget_bytes is None else budget_bytes,
            unused=self.settings.depot_unused if unused is None else unused,
            dry_run=dry_run,
        )

    @asynccontextmanager
    async def installing_depot(self) -> AsyncIterator[Depot]:
        """One that can fetch, tidied up after an earlier one that was interrupted."""
        self.data.prepare()
        keys = Keychain(docker_config_files(os.environ), os.environ)
        registries = registries_of(self.settings)
        async with open_client(SystemClock(), SystemEntropy(), registries=registries, keys=keys) as client:
            depot = Depot(
                self.places,
                SystemClock(),
                client,
                platform_of(platform.system(), platform.machine()),
                require_integrity=self.settings.require_backend_integrity,
            )
            await depot.recover()
            yield depot


async def gallery_machine(inventory: HardwareInventory) -> MachineProfile:
    """This machine, as galleries choose by it."""
    found = await inventory.current()
    architecture = found.architecture or platform_of(platform.system(), platform.machine()).architecture
    return MachineProfile(found.os, architecture, found.capability, found.gpu_vendor, found.total_vram)
