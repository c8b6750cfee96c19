"""From files in a staging folder to an installed version, and whether one is needed. Blocks on the disk."""

import os
from dataclasses import replace
from pathlib import Path

import structlog

from remuda import __version__
from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.gallery.references import same_source
from remuda.oci.digests import digest_of_bytes
from remuda.oci.errors import ContentRefused
from remuda.oci.model import Image
from remuda.oci.space import disk_trouble_explained
from remuda.oci.unpack import fsync_tree
from remuda.wire.codec import rfc3339
from remuda.worker.depot.builtin import run_script, write_run_file
from remuda.worker.depot.listing import run_name
from remuda.worker.depot.metadata import (
    Metadata,
    Record,
    file_is,
    read_metadata,
    read_record,
    write_metadata,
    write_record,
    write_text,
)
from remuda.worker.depot.orders import Order
from remuda.worker.depot.places import MANIFEST_FILE, PROVEN_FILE, RECORD_FILE, RUN_FILE, Places
from remuda.worker.depot.shelf import Shelf

log = structlog.get_logger()


class Maker:
    """Callers hold the name's lock. `python` is what built-in backends run on."""

    def __init__(self, places: Places, shelf: Shelf, clock: Clock, python: Path) -> None:
        self._places = places
        self._shelf = shelf
        self._clock = clock
        self._python = python

    # Whether.

    def is_there(self, order: Order) -> bool:
        folder = self._places.installed(order.name)
        if not run_name(folder):
            return False
        return not order.digest or _recorded(folder).digest == order.digest

    def is_current(self, order: Order, image: Image) -> bool:
        """What is installed is this image, and is described as ordered."""
        folder = self._places.installed(order.name)
        known, record = _recorded(folder), read_record(folder)
        if not run_name(folder) or not _described(known, order) or record.manifest != _manifest_digest(order):
            return False
        return image.digest == known.digest or (not known.digest and record.content == image.platform_digest)

    # Making.

    def stage(self, name: str) -> Path:
        """An empty folder for the files of a new version; `finish` takes it from there."""
        with disk_trouble_explained(name, self._places.backends, 0):
            return self._shelf.stage(name)

    def finish(self, order: Order, record: Record, digest: str = "") -> None:
        """From a tree of files to a whole version, still staged: `switch_in` puts it in place.

        ContentRefused when nothing tells how to run it.
        """
        staging = self._places.staging(order.name)
        with disk_trouble_explained(order.name, self._places.backends, 0):
            if order.manifest:
                record = record.model_copy(update={"manifest": _manifest_digest(order)})
                if not os.path.lexists(staging / MANIFEST_FILE):
                    write_text(staging / MANIFEST_FILE, order.manifest)
            if not run_name(staging):
                needed = f"neither {RUN_FILE} nor {MANIFEST_FILE} at its root"
                raise ContentRefused(f"{record.source or order.name} is not a backend: it has {needed}")
            (staging / PROVEN_FILE).unlink(missing_ok=True)
            (staging / RECORD_FILE).unlink(missing_ok=True)
            write_metadata(staging, self._metadata(order, digest))
            write_record(staging, record)
            fsync_tree(staging)

    def switch_in(self, name: str) -> None:
        """The finished version becomes the installed one."""
        with disk_trouble_explained(name, self._places.backends, 0):
            self._shelf.commit(name)

    def builtin(self, uri: str, order: Order) -> bool:
        """Stage what ships with Remuda; False where it is installed already."""
        order = replace(order, version=__version__)
        script = run_script(uri, order.name, self._python)
        folder = self._places.installed(order.name)
        if file_is(folder / RUN_FILE, script) and _described(_recorded(folder), order):
            return False
        staging = self.stage(order.name)
        with disk_trouble_explained(order.name, self._places.backends, 0):
            write_run_file(staging, script)
        self.finish(order, Record(source=uri))
        return True

    def manifest_alone(self, order: Order) -> bool:
        """Have a backend that is nothing but its manifest; whether that was not so already."""
        folder = self._places.installed(order.name)
        if run_name(folder) == MANIFEST_FILE and file_is(folder / MANIFEST_FILE, order.manifest):
            return False
        self.stage(order.name)
        self.finish(order, Record())
        self.switch_in(order.name)
        return True

    def stand_for(self, order: Order) -> None:
        """A folder with nothing but the word which backend a meta backend stands for."""
        folder = self._places.installed(order.meta)
        if folder == self._places.installed(order.name) or run_name(folder):
            return
        known = None
        try:
            known = read_metadata(folder)
        except RemudaError as error:
            log.warning("backend_metadata_replaced", name=order.meta, error=str(error))
        if known is not None and known.meta_backend_for == order.name:
            return
        folder.mkdir(parents=True, exist_ok=True)
        meta = Metadata(
            meta_backend_for=order.name,
            name=order.meta,
            gallery_url=order.gallery_url,
            installed_at=self._now(),
            version=order.version,
        )
        write_metadata(folder, meta)

    def _metadata(self, order: Order, digest: str) -> Metadata:
        return Metadata(
            alias=order.alias,
            name=order.name,
            gallery_url=order.gallery_url,
            installed_at=self._now(),
            version=order.version,
            uri=order.uris[0] if order.uris else "",
            digest=digest,
        )

    def _now(self) -> str:
        return rfc3339(self._clock.now().replace(microsecond=0))


def _described(known: Metadata, order: Order) -> bool:
    """Of what came from a reference that reference is part of the description: an upgrade asks it again."""
    named = order.uris[:1] if not order.gallery_url and order.uris else ()
    elsewhere = any(known.uri and not same_source(known.uri, uri) for uri in named)
    return (known.alias, known.version) == (order.alias, order.version) and not elsewhere


def _recorded(folder: Path) -> Metadata:
    try:
        return read_metadata(folder) or Metadata()
    except RemudaError:
        return Metadata()  # Then it is made anew.


def _manifest_digest(order: Order) -> str:
    return digest_of_bytes(order.manifest.encode()) if order.manifest else ""
