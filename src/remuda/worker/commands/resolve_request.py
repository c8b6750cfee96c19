"""From a request to what is to be installed: by the galleries it names, else by this machine's own."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import structlog

from remuda.core.errors import Invalid
from remuda.gallery.model import Gallery, MachineProfile, Reading, galleries_from_json
from remuda.gallery.resolve import ResolvedBuild, Unresolved, resolve
from remuda.gallery.sources import Sources
from remuda.wire.backends import BackendInstall, BackendUpgrade
from remuda.worker.commands import limits
from remuda.worker.depot.install_spec import InstallSpec, is_source, spec_from_gallery, spec_from_source

log = structlog.get_logger(__name__)

Wanted = BackendInstall | BackendUpgrade


class RequestResolver:
    """`open_sources` is for galleries that a request brings; those used lately stay open."""

    def __init__(
        self,
        own: Sources,
        open_sources: Callable[[tuple[Gallery, ...]], Sources],
        machine: Callable[[], Awaitable[MachineProfile]],
    ) -> None:
        self._own = own
        self._open_sources = open_sources
        self._look_at_machine = machine
        self._machine_seen: tuple[MachineProfile, float] | None = None  # With when that is to be forgotten.
        self._opened: OrderedDict[tuple[Gallery, ...], Sources] = OrderedDict()

    async def resolve(self, wanted: Wanted) -> InstallSpec:
        """Raises what stands against it: NotFound, Invalid, or Unavailable when a gallery cannot be read."""
        spec = _from_source(wanted) if wanted.uri else await self._from_galleries(wanted)
        return replace(spec, digest=wanted.digest) if wanted.digest else spec

    async def capability(self) -> str:
        """What this machine reports, for the choice among builds that share an alias."""
        return (await self._machine()).effective_capability

    async def _machine(self) -> MachineProfile:
        """Hardware changes seldom, and a driver that hangs would hold up every request."""
        if self._machine_seen is not None and anyio.current_time() < self._machine_seen[1]:
            return self._machine_seen[0]
        machine = await self._look_at_machine()
        self._machine_seen = machine, anyio.current_time() + limits.MACHINE_FRESH_S
        return machine

    async def _from_galleries(self, wanted: Wanted) -> InstallSpec:
        """An index that is older than a name, or than the version that an upgrade is for, is read again."""
        sources, machine = self._sources(wanted.backend_galleries), await self._machine()
        afresh = isinstance(wanted, BackendUpgrade)
        readings = await (_read_afresh(sources) if afresh else sources.read())
        answer = resolve(readings, wanted.backend, machine)
        if isinstance(answer, Unresolved) and not afresh:
            readings = await _read_afresh(sources)
            answer = resolve(readings, wanted.backend, machine)
        spec = spec_from_gallery(answer, readings)
        for warning in answer.warnings if isinstance(answer, ResolvedBuild) else ():
            log.warning("backend_choice_doubtful", backend=wanted.backend, warning=warning)
        return spec

    def _sources(self, text: str) -> Sources:
        """Any text takes the place of the machine's own galleries, also that of an empty list."""
        if not text:
            return self._own
        galleries = galleries_from_json(text)
        sources = self._opened.pop(galleries, None) or self._open_sources(galleries)
        self._opened[galleries] = sources
        while len(self._opened) > limits.GALLERIES_KEPT_MAX:
            self._opened.popitem(last=False)
        return sources


async def _read_afresh(sources: Sources) -> tuple[Reading, ...]:
    """A gallery that does not answer soon is used as it was known."""
    with anyio.move_on_after(limits.GALLERY_AFRESH_S):
        return await sources.read(refresh=True)
    return await sources.read()


def named_backend(wanted: Wanted) -> str:
    """The name asked for. Peers that have none for a source send the source in its place, or nothing."""
    if wanted.uri and (not wanted.backend or is_source(wanted.backend)):
        return _from_source(wanted).name
    if not wanted.backend:
        raise Invalid("backend: must not be empty")
    return wanted.backend


def _from_source(wanted: Wanted) -> InstallSpec:
    named = wanted.name or ("" if is_source(wanted.backend) else wanted.backend)
    return spec_from_source(wanted.uri, named, wanted.alias)
