"""What can go wrong between a reference and verified bytes. Messages name the registry, image or blob meant.

RegistryFailed      the same request may work later
  RegistryBusy      it says when
  AskedToWait       longer than a call waits: the operation does
ContentRefused      what arrived is not what was promised; asking again brings the same
  VersionChanged    it was replaced meanwhile; the new version can be asked for
NotABackend         it is what was promised, and cannot be run
PlatformMissing     the image exists, but not for this machine
DiskFull            with what is needed, what is free, and where
SignatureRequired   verification is demanded and cannot be done
"""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from remuda.core.errors import Invalid, NotFound, PeerFailed, Problem, Rejected, Unavailable
from remuda.wire.sizes import install_size


class RegistryFailed(PeerFailed):
    code = "registry_failed"


class Unreached(RegistryFailed):
    """No connection, or no answer."""


class UnknownHost(Unreached):
    """The name service says that there is no host of this name."""


class RegistryBusy(RegistryFailed):
    """The registry asked to be left alone for a while."""

    def __init__(self, message: str, retry_after: timedelta | None, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class AskedToWait(RegistryFailed):
    """The server asked for a longer pause than is made within one call."""

    def __init__(self, message: str, wait: timedelta, *, hint: str = "") -> None:
        super().__init__(f"{message}, and asks to wait {wait.total_seconds():.0f} s", hint=hint)
        self.wait = wait

    def problem(self) -> Problem:
        return replace(super().problem(), wait_s=round(self.wait.total_seconds()))


class ContentRefused(Invalid):
    code = "content_refused"


class VersionChanged(ContentRefused):
    """What is being fetched was replaced at its server."""


class NotABackend(Invalid):
    """The files are as promised, and nothing among them tells how to run them."""

    code = "not_a_backend"


class PlatformMissing(NotFound):
    code = "platform_missing"


class DiskFull(Unavailable):
    code = "disk_full"


class SignatureRequired(Rejected):
    code = "signature_required"


def signature_required(gallery: str) -> SignatureRequired:
    """For a gallery whose entries may only be installed once their signature was verified."""
    return SignatureRequired(
        f"gallery {gallery!r} demands that signatures be verified, which Remuda cannot do yet",
        hint="nothing was fetched; remove `verification` from the gallery to trust it without, "
        "or use another gallery",
    )


def disk_full(
    what: str, folder: Path, needed_bytes: int, free_bytes: int, kept_free_bytes: int = 0
) -> DiskFull:
    """`kept_free_bytes` are to be left, beside what is needed."""
    kept = f", and {install_size(kept_free_bytes)} more to stay free," if kept_free_bytes else ""
    return DiskFull(
        f"{what} needs {install_size(needed_bytes)}{kept} on the disk of {folder}, "
        f"where {install_size(free_bytes)} are free",
        hint="free some space or choose another folder; anything fetched so far is kept and resumed",
    )
