"""Fetching backends, each watched by everybody who wants it: one pull serves all of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from remuda.worker.depot.depot import Depot, Installed, Switching
from remuda.worker.depot.install_spec import InstallSpec
from remuda.worker.depot.progress import OnStep, ProgressStep


class Pulls:
    def __init__(self, depot: Depot) -> None:
        self._depot = depot
        self._watching: dict[str, list[OnStep]] = {}

    @contextmanager
    def watched(self, name: str, on_step: OnStep) -> Iterator[None]:
        """`on_step` hears of every pull of this backend, whoever runs it."""
        watchers = self._watching.setdefault(name, [])
        watchers.append(on_step)
        try:
            yield
        finally:
            watchers.remove(on_step)
            if not watchers:
                self._watching.pop(name, None)

    async def fetch(self, spec: InstallSpec, *, refresh: bool, switching: Switching) -> Installed:
        """Callers hold the locks of the spec's names. Raises what Depot.install does."""
        on_step = partial(self._tell, spec.name)
        return await self._depot.install(spec, refresh=refresh, on_step=on_step, switching=switching)

    def _tell(self, name: str, step: ProgressStep) -> None:
        for on_step in tuple(self._watching.get(name, ())):
            on_step(step)
