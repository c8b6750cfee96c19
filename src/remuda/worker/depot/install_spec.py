"""What is to be installed: from a request and the galleries it names, else this machine's own; or from a
source that a person names.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio
import structlog

from remuda.core.errors import Invalid, NotFound, Rejected, RemudaError, Unavailable
from remuda.gallery.model import Gallery, MachineProfile, Reading, find, galleries_from_json
from remuda.gallery.resolve import ResolvedBuild, Unresolved, resolve
from remuda.gallery.sources import Sources
from remuda.oci.errors import SignatureRequired
from remuda.oci.reference import Archive, Folder, ImageSource, OciFile, OciImage, parse_source
from remuda.wire.backends import BackendInstall, BackendUpgrade
from remuda.worker.depot.layout import checked_name

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class InstallSpec:
    """One concrete backend. `uris` are tried in order; `digest` pins what the first of them must be. A URI
    `builtin:NAME` means what ships with Remuda, whose version is then the backend's."""

    name: str
    uris: tuple[str, ...]
    alias: str = ""
    meta: str = ""  # A meta backend's name that was asked for and is to stand for this one.
    gallery_url: str = ""
    version: str = ""
    sha256: str = ""
    digest: str = ""
    manifest: str = ""  # What becomes the manifest of a backend that brings none.


def spec_from_gallery(answer: ResolvedBuild | Unresolved, readings: Sequence[Reading]) -> InstallSpec:
    """The build that a gallery chose. Raises what stands against it."""
    if isinstance(answer, Unresolved):
        kind = Unavailable if answer.retryable else NotFound
        raise kind(answer.reason, hint=answer.hint)
    entry = answer.entry
    wanted_entry = find(readings, answer.requested)
    return InstallSpec(
        checked_name(entry.name),
        answer.uris,
        alias=entry.alias,
        meta=checked_name(answer.requested) if wanted_entry is not None and wanted_entry.entry.meta else "",
        gallery_url=answer.gallery.url,
        version=entry.version,
        sha256=entry.sha256,
        manifest=entry.manifest,
    )


def spec_from_source(uri: str, name: str = "", alias: str = "") -> InstallSpec:
    """A backend from outside the galleries. Folders and files lend their name; an image needs one."""
    return InstallSpec(checked_name(name or _own_name(parse_source(uri))), (uri,), alias=alias)


def is_source(text: str) -> bool:
    """It names a place rather than an entry of a gallery."""
    return "/" in text or text in (".", "..")


def check_integrity(source: ImageSource, sha256: str) -> None:
    """For machines that demand that bytes be vouched for before they are used: SignatureRequired without.

    A digest in a reference, like the checksum of an archive, was written down by a trusted party. What
    lies in a folder of this machine was put there by a user who can do worse.
    """
    match source:
        case Folder():
            return
        case OciImage(reference) if reference.digest is not None:
            return
        case Archive() if sha256:
            return
    raise SignatureRequired(
        f"{_shown(source)} cannot be verified, which this machine requires (require-backend-integrity)",
        hint="name an image by its digest, or an archive with its sha256",
    )


def all_failed(name: str, failures: Sequence[tuple[str, RemudaError]]) -> RemudaError:
    """One error for all sources of a backend: of their kind, where they failed alike."""
    if len(failures) == 1:
        return failures[0][1]
    reasons = "; ".join(f"{uri}: {failure.message}" for uri, failure in failures)
    kinds = {type(failure) for _, failure in failures}
    kind: type[RemudaError] = kinds.pop() if len(kinds) == 1 else Rejected
    if any(failure.retryable for _, failure in failures):
        kind = Unavailable
    return kind(f"{name} could not be fetched from any of its {len(failures)} sources: {reasons}")


def _own_name(source: ImageSource) -> str:
    match source:
        case Folder(path):
            return path.resolve().name
        case OciFile(path) | Archive(Path() as path):
            return path.name.partition(".")[0]
    raise Invalid(f"{_shown(source)} needs a name to be installed under", hint="add --name NAME")


def _shown(source: ImageSource) -> str:
    match source:
        case OciImage(reference):
            return str(reference)
        case Archive(location):
            return str(location).partition("?")[0]  # What follows may be a signature.
        case OciFile(path) | Folder(path):
            return str(path)


_GALLERIES_KEPT_MAX: Final = 8  # Lists of galleries whose indexes stay in memory.
_GALLERY_AFRESH_S: Final = 15.0  # For an index to be read again though a copy is there.
_MACHINE_FRESH_S: Final = 60.0  # What was seen of the hardware is relied on for so long.

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
        self._machine_seen = machine, anyio.current_time() + _MACHINE_FRESH_S
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
            log.warning("backend_choice_warning", backend=wanted.backend, warning=warning)
        return spec

    def _sources(self, text: str) -> Sources:
        """Any text takes the place of the machine's own galleries, also that of an empty list."""
        if not text:
            return self._own
        galleries = galleries_from_json(text)
        sources = self._opened.pop(galleries, None) or self._open_sources(galleries)
        self._opened[galleries] = sources
        while len(self._opened) > _GALLERIES_KEPT_MAX:
            self._opened.popitem(last=False)
        return sources


async def _read_afresh(sources: Sources) -> tuple[Reading, ...]:
    """A gallery that does not answer soon is used as it was known."""
    with anyio.move_on_after(_GALLERY_AFRESH_S):
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
