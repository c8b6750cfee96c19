"""Object storage as the frontends' store: the files of installed models are put there by the frontend that
fetched them, under the contract's keys, and workers read them by addresses that are signed here.

What is there is asked of the storage; remembered is only what it cannot tell: which uploads are not finished,
and which objects this frontend has put there, so that they go with their model.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Final

import anyio
import structlog
from anyio.abc import TaskStatus
from anyio.to_thread import run_sync
from pydantic import TypeAdapter, ValidationError

from remuda.core.clock import Clock
from remuda.core.errors import RemudaError
from remuda.core.ids import FrontendId
from remuda.core.os_errors import os_reason
from remuda.host.folder import write_private
from remuda.models.file_hashes import FileHashes
from remuda.models.files import ManifestFile, NeededFile
from remuda.s3 import limits
from remuda.s3.requests import SignedRequests
from remuda.s3.uploads import BegunUpload, FileUploads, StoredFile, UploadedFile
from remuda.scheduler.model import StoredModel
from remuda.wire.files import model_key

log = structlog.get_logger(__name__)

_LOOK_EVERY_S: Final = 10.0
_TRUSTED_S: Final = 60.0  # What the storage has said of an object; half of it for what is not there.
_VALID_S: Final = 15 * 60
_KEPT_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Noted:
    """`fleet` tells one database from another: what was put there for one does not go with the other."""

    fleet: str = ""
    begun: Mapping[str, BegunUpload] = field(default_factory=dict)
    put: Mapping[str, str] = field(default_factory=dict)  # SHA-256 by key.


_NOTED: Final = TypeAdapter(_Noted)


class StoreNotes:
    """In one small file. Implements s3.uploads.UploadNotes."""

    def __init__(self, path: Path, fleet: str) -> None:
        self._path = path
        self._fleet = fleet
        self._turn = Lock()

    def get(self, key: str) -> BegunUpload | None:
        return self._read().begun.get(key)

    def put(self, key: str, begun: BegunUpload | None) -> None:
        with self._turn:
            noted = self._read()
            others = {one: upload for one, upload in noted.begun.items() if one != key}
            self._write(replace(noted, begun=others if begun is None else {**others, key: begun}))

    def objects(self) -> Mapping[str, str]:
        return self._read().put

    def note(self, key: str, sha256: str) -> None:
        """Empty: it is not there any more."""
        with self._turn:
            noted = self._read()
            others = {one: known for one, known in noted.put.items() if one != key}
            self._write(replace(noted, put={**others, key: sha256} if sha256 else others))

    def _read(self) -> _Noted:
        try:
            noted = _NOTED.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return _Noted(self._fleet)
        except (OSError, ValidationError) as error:
            log.warning("store_notes_not_read", path=str(self._path), reason=str(error))
            return _Noted(self._fleet)
        return noted if noted.fleet == self._fleet else _Noted(self._fleet)

    def _write(self, noted: _Noted) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_private(self._path, _NOTED.dump_json(noted).decode())


@dataclass(slots=True)
class _Missing:
    """The file of a model that is looked at, or on its way."""

    path: str
    size: int
    done_bytes: int = 0

    def reached(self, done_bytes: int) -> None:
        self.done_bytes = done_bytes


class ModelObjects:
    """Implements scheduler.ports.StoredFiles. `run` it once: it brings the storage up to date."""

    def __init__(
        self,
        requests: SignedRequests,
        notes: StoreNotes,
        models: Callable[[], Awaitable[Sequence[StoredModel]]],
        models_path: Path,
        hashes: FileHashes,
        *,
        frontend: FrontendId,
        clock: Clock,
        tries_max: int = limits.ATTEMPTS_MAX,
    ) -> None:
        self._requests = requests
        self._uploads = FileUploads(requests, notes, tries_max)
        self._notes = notes
        self._models = models
        self._models_path = models_path
        self._hashes = hashes
        self._frontend = frontend
        self._clock = clock
        self._known: dict[str, tuple[float, StoredFile | None]] = {}
        self._trouble = ""
        self._next_s = 0.0  # When it is tried again, where there is trouble.
        self._missing: dict[str, _Missing] = {}
        self._whole: frozenset[str] = frozenset()

    def trouble(self) -> str:
        """Why the storage does not have all that it should; empty: it has, or is just getting it."""
        return self._trouble

    def state_of(self, model: str) -> str:
        """What its files in the storage lack, in words; empty: nothing, as far as this frontend puts them
        there."""
        missing = self._missing.get(model)
        if missing is None:
            return ""
        if self._trouble:
            left_s = max(round(self._next_s - self._clock.monotonic()), 0)
            return f"its files are not in the object storage yet: {self._trouble}; next attempt in {left_s} s"
        share = f"{100 * missing.done_bytes // missing.size} %" if missing.size else "0 %"
        return f"{missing.path} is being put into the object storage ({share})"

    def has(self, model: str) -> bool:
        """All files of a model, from any frontend, as they were seen when this frontend looked last."""
        return model in self._whole

    async def address(self, model: str, file: NeededFile) -> str:
        """Where a worker can read this very file for some minutes; empty: it is not in the storage, or that
        cannot be asked."""
        key = model_key(model, file.path)
        try:
            found = await self._found(key)
        except RemudaError as error:
            self._tell(error)
            return ""
        if found is None or not file.sha256 or found != StoredFile(file.size, file.sha256):
            return ""
        return self._requests.address(key, _VALID_S)

    async def _found(self, key: str) -> StoredFile | None:
        at_s, known = self._known.get(key, (-_TRUSTED_S, None))
        age_s = self._clock.monotonic() - at_s
        if age_s < (_TRUSTED_S / 2 if known is None else _TRUSTED_S):
            return known
        found = await self._uploads.found(key)
        if len(self._known) >= _KEPT_MAX:
            self._known.clear()
        self._known[key] = (self._clock.monotonic(), found)
        return found

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            try:
                await self.bring_up_to_date()
                self._trouble = ""
            except RemudaError as error:
                self._tell(error)
            except OSError as error:
                log.warning("models_not_stored", reason=str(error))
                self._trouble = f"a file cannot be read: {os_reason(error)}"
            self._next_s = self._clock.monotonic() + _LOOK_EVERY_S
            await anyio.sleep(_LOOK_EVERY_S)

    async def bring_up_to_date(self) -> None:
        """What this frontend has fetched is there; what it has put there for models that are gone is not."""
        stored = await self._models()
        names = {model.name for model in stored}
        wanted: dict[str, ManifestFile] = {}
        self._whole &= names
        for model in stored:
            if model.manifest is not None:
                wanted |= {model_key(model.name, file.path): file for file in model.manifest.files}
                if model.kept_by == self._frontend:
                    await self._put(model.name, model.manifest.files)
                has = await self._has_all(model.name, model.manifest.files)
                self._whole = self._whole | {model.name} if has else self._whole - {model.name}
        self._missing = {name: one for name, one in self._missing.items() if name in names}
        noted = await run_sync(self._notes.objects)
        for key in noted:
            if key not in wanted:
                await self._uploads.remove(key)
                await run_sync(self._notes.note, key, "")
                self._known.pop(key, None)
                log.info("model_file_removed_from_storage", object=key)

    async def _has_all(self, model: str, files: Sequence[ManifestFile]) -> bool:
        for file in files:
            if await self._found(model_key(model, file.path)) != StoredFile(file.size, file.sha256):
                return False
        return bool(files)

    async def _put(self, model: str, files: Sequence[ManifestFile]) -> None:
        for file in files:
            key = model_key(model, file.path)
            path = self._models_path / file.path
            missing = self._missing[model] = _Missing(file.path, file.size)
            if await self._found(key) == StoredFile(file.size, file.sha256):
                continue
            if not path.is_file() or await self._hashes.of(path) != file.sha256:
                continue
            log.info("model_file_stored", object=key, size=file.size)
            same = await self._same_content(file.sha256, key)
            await run_sync(self._notes.note, key, file.sha256)
            wanted = StoredFile(file.size, file.sha256)
            if not (same and await self._uploads.copy(same, key, wanted)):
                uploaded = UploadedFile(path, file.size, file.sha256)
                await self._uploads.upload(uploaded, key, self._clock.now(), missing.reached)
            self._known.pop(key, None)
        self._missing.pop(model, None)

    async def _same_content(self, sha256: str, key: str) -> str:
        """An object that this frontend has put there, of a model that has been renamed since, or another;
        empty: there is none."""
        noted = await run_sync(self._notes.objects)
        return next((one for one, known in noted.items() if known == sha256 and one != key), "")

    def _tell(self, error: RemudaError) -> None:
        """Once for each trouble."""
        if error.message != self._trouble:
            self._trouble = error.message
            log.warning("object_storage_not_usable", reason=error.message, hint=error.hint)
