"""From files in a staging folder to an installed version, and whether one is needed. Blocks on the disk.

Backends that ship with Remuda are not fetched: a run file starts this installation's own module.
"""

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from remuda import __version__
from remuda.core.clock import Clock
from remuda.core.errors import NotFound, RemudaError
from remuda.gallery.model import BUILTIN
from remuda.gallery.references import same_source
from remuda.oci.disk import disk_trouble_explained
from remuda.oci.errors import NotABackend
from remuda.oci.model import Image, digest_of_bytes
from remuda.oci.unpack import fsync_tree
from remuda.wire.codec import rfc3339
from remuda.worker.depot.install_spec import InstallSpec
from remuda.worker.depot.layout import (
    MANIFEST_FILE,
    PROVEN_FILE,
    RECORD_FILE,
    RUN_FILE,
    START_FAILED_FILE,
    DepotLayout,
    Metadata,
    Record,
    file_is,
    read_metadata,
    read_record,
    write_metadata,
    write_record,
    write_text,
)
from remuda.worker.depot.listing import run_name
from remuda.worker.depot.versions import VersionStore

_MODULES: Final = {"llama-cpp": "remuda.backends.llama_cpp", "echo": "remuda.backends.echo"}

_SCRIPT: Final = """\
#!/bin/sh
# Written by Remuda, and written again when it is upgraded or moved: changes are lost.
python={python}
if [ ! -x "$python" ]; then
    echo "$python is gone, and with it the Remuda that this backend is part of." \\
        "Start the worker again, or run: remuda backends pull {backend}" >&2
    exit 127
fi
exec "$python" -P -m {module} "$@"
"""


def is_builtin(uri: str) -> bool:
    return uri.startswith(BUILTIN)


def run_script(uri: str, backend: str, python: Path) -> str:
    """What the run file of `backend` has to be while `python` is the interpreter that has Remuda.

    NotFound when this Remuda has no such built-in.
    """
    module = _MODULES.get(uri.removeprefix(BUILTIN))
    if module is None:
        known = ", ".join(f"{BUILTIN}{name}" for name in _MODULES)
        raise NotFound(f"{uri} does not ship with this Remuda", hint=f"known: {known}")
    return _SCRIPT.format(
        python=shlex.quote(str(python.absolute())), backend=shlex.quote(backend), module=module
    )


def write_run_file(folder: Path, script: str) -> None:
    path = folder / RUN_FILE
    path.write_text(script)
    path.chmod(0o755)


log = structlog.get_logger()


class VersionStager:
    """Callers hold the name's lock. `python` is what built-in backends run on."""

    def __init__(self, places: DepotLayout, shelf: VersionStore, clock: Clock, python: Path) -> None:
        self._places = places
        self._versions = shelf
        self._clock = clock
        self._python = python

    # Whether.

    def is_there(self, spec: InstallSpec) -> bool:
        folder = self._places.installed(spec.name)
        if not run_name(folder):
            return False
        return not spec.digest or _recorded(folder).digest == spec.digest

    def is_current(self, spec: InstallSpec, image: Image) -> bool:
        """What is installed is this image, and is described as ordered."""
        folder = self._places.installed(spec.name)
        known, record = _recorded(folder), read_record(folder)
        if not run_name(folder) or not _described(known, spec) or record.manifest != _manifest_digest(spec):
            return False
        return image.digest == known.digest or (not known.digest and record.content == image.platform_digest)

    # Making.

    def stage(self, name: str) -> Path:
        """An empty folder for the files of a new version; `finish` takes it from there."""
        with disk_trouble_explained(name, self._places.backends, 0):
            return self._versions.stage(name)

    def finish(self, spec: InstallSpec, record: Record, digest: str = "") -> None:
        """From a tree of files to a whole version, still staged: `switch_in` puts it in place.

        NotABackend when nothing tells how to run it.
        """
        staging = self._places.staging(spec.name)
        with disk_trouble_explained(spec.name, self._places.backends, 0):
            if spec.manifest:
                record = record.model_copy(update={"manifest": _manifest_digest(spec)})
                if not os.path.lexists(staging / MANIFEST_FILE):
                    write_text(staging / MANIFEST_FILE, spec.manifest)
            if not run_name(staging):
                needed = f"neither {RUN_FILE} nor {MANIFEST_FILE} at its root"
                raise NotABackend(f"{record.source or spec.name} is not a backend: it has {needed}")
            for ours in (PROVEN_FILE, START_FAILED_FILE, RECORD_FILE):
                (staging / ours).unlink(missing_ok=True)
            write_metadata(staging, self._metadata(spec, digest))
            write_record(staging, record)
            fsync_tree(staging)

    def switch_in(self, name: str) -> None:
        """The finished version becomes the installed one."""
        with disk_trouble_explained(name, self._places.backends, 0):
            self._versions.commit(name)

    def follow(self, name: str, digest: str, uri: str) -> bool:
        """Record that what is installed, if it has this digest, now comes from this reference. Its files stay
        as they are; the time is that of the request: that is when the reference was known to mean them."""
        folder = self._places.installed(name)
        known = _recorded(folder)
        # With a gallery's manifest it is more than the image that the reference means.
        if not digest or known.digest != digest or read_record(folder).manifest:
            return False
        fields = {"uri": uri, "gallery_url": "", "version": "", "installed_at": self._now()}
        with disk_trouble_explained(name, self._places.backends, 0):
            write_metadata(folder, known.model_copy(update=fields))
        return True

    def builtin(self, uri: str, spec: InstallSpec) -> bool:
        """Stage what ships with Remuda; False where it is installed already."""
        spec = replace(spec, version=__version__)
        script = run_script(uri, spec.name, self._python)
        folder = self._places.installed(spec.name)
        if file_is(folder / RUN_FILE, script) and _described(_recorded(folder), spec):
            return False
        staging = self.stage(spec.name)
        with disk_trouble_explained(spec.name, self._places.backends, 0):
            write_run_file(staging, script)
        self.finish(spec, Record(source=uri))
        return True

    def manifest_alone(self, spec: InstallSpec) -> bool:
        """Have a backend that is nothing but its manifest; whether that was not so already."""
        folder = self._places.installed(spec.name)
        if run_name(folder) == MANIFEST_FILE and file_is(folder / MANIFEST_FILE, spec.manifest):
            return False
        self.stage(spec.name)
        self.finish(spec, Record())
        self.switch_in(spec.name)
        return True

    def stand_for(self, spec: InstallSpec) -> None:
        """A folder with nothing but the word which backend a meta backend stands for."""
        folder = self._places.installed(spec.meta)
        if folder == self._places.installed(spec.name) or run_name(folder):
            return
        known = None
        try:
            known = read_metadata(folder)
        except RemudaError as error:
            log.warning("backend_metadata_replaced", name=spec.meta, error=str(error))
        if known is not None and known.meta_backend_for == spec.name:
            return
        folder.mkdir(parents=True, exist_ok=True)
        meta = Metadata(
            meta_backend_for=spec.name,
            name=spec.meta,
            gallery_url=spec.gallery_url,
            installed_at=self._now(),
            version=spec.version,
        )
        write_metadata(folder, meta)

    def _metadata(self, spec: InstallSpec, digest: str) -> Metadata:
        return Metadata(
            alias=spec.alias,
            name=spec.name,
            gallery_url=spec.gallery_url,
            installed_at=self._now(),
            version=spec.version,
            uri=spec.uris[0] if spec.uris else "",
            digest=digest,
        )

    def _now(self) -> str:
        return rfc3339(self._clock.now().replace(microsecond=0))


def _described(known: Metadata, spec: InstallSpec) -> bool:
    """Of what came from a reference that reference is part of the description: an upgrade asks it again."""
    named = spec.uris[:1] if not spec.gallery_url and spec.uris else ()
    elsewhere = any(known.uri and not same_source(known.uri, uri) for uri in named)
    return (known.alias, known.version) == (spec.alias, spec.version) and not elsewhere


def _recorded(folder: Path) -> Metadata:
    try:
        return read_metadata(folder) or Metadata()
    except RemudaError:
        return Metadata()  # Then it is made anew.


def _manifest_digest(spec: InstallSpec) -> str:
    return digest_of_bytes(spec.manifest.encode()) if spec.manifest else ""
