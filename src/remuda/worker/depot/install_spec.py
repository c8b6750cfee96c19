"""What is to be installed: from a gallery's answer, or from a source that a person names. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remuda.core.errors import Invalid, NotFound, Rejected, RemudaError, Unavailable
from remuda.gallery.model import Reading, find
from remuda.gallery.resolve import ResolvedBuild, Unresolved
from remuda.oci.errors import SignatureRequired
from remuda.oci.reference import Archive, Folder, OciFile, OciImage, Source, parse_source
from remuda.worker.depot.layout import checked_name


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
    asked = find(readings, answer.requested)
    return InstallSpec(
        checked_name(entry.name),
        answer.uris,
        alias=entry.alias,
        meta=checked_name(answer.requested) if asked is not None and asked.entry.meta else "",
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


def check_integrity(source: Source, sha256: str) -> None:
    """For machines that demand that bytes be vouched for before they are used: SignatureRequired without.

    A digest in a reference, like the checksum of an archive, was written down by whoever is trusted. What
    lies in a folder of this machine was put there by somebody who can do worse.
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
    told = "; ".join(f"{uri}: {failure.message}" for uri, failure in failures)
    kinds = {type(failure) for _, failure in failures}
    kind: type[RemudaError] = kinds.pop() if len(kinds) == 1 else Rejected
    if any(failure.retryable for _, failure in failures):
        kind = Unavailable
    return kind(f"{name} could not be fetched from any of its {len(failures)} sources: {told}")


def _own_name(source: Source) -> str:
    match source:
        case Folder(path):
            return path.resolve().name
        case OciFile(path) | Archive(Path() as path):
            return path.name.partition(".")[0]
    raise Invalid(f"{_shown(source)} needs a name to be installed under", hint="add --name NAME")


def _shown(source: Source) -> str:
    match source:
        case OciImage(reference):
            return str(reference)
        case Archive(location):
            return str(location).partition("?")[0]  # What follows may be a signature.
        case OciFile(path) | Folder(path):
            return str(path)
