"""A large file as one object, in parts that last: a process that is killed over it goes on after those that
have arrived. Each part is signed with its SHA-256, and the object carries that of the whole.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from html import unescape
from pathlib import Path
from typing import Final, Protocol
from xml.sax.saxutils import escape

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.errors import Invalid, NotFound, PeerFailed
from remuda.s3 import limits
from remuda.s3.account import StorageFailed
from remuda.s3.requests import SignedRequests

log = structlog.get_logger(__name__)

SHA256_HEADER: Final = "x-amz-meta-sha256"
_CREATED_HEADER: Final = "x-amz-meta-created-at"
_COPY_HEADER: Final = "x-amz-copy-source"
_UPLOAD_ID: Final = re.compile(r"<UploadId>([^<]+)</UploadId>")
_PART: Final = re.compile(r"<Part>(.*?)</Part>", re.DOTALL)
_NUMBER: Final = re.compile(r"<PartNumber>(\d{1,5})</PartNumber>")
_SIZE: Final = re.compile(r"<Size>(\d{1,18})</Size>")
_ETAG: Final = re.compile(r"<ETag>([^<]+)</ETag>")
_NEXT: Final = re.compile(r"<NextPartNumberMarker>(\d{1,5})</NextPartNumberMarker>")
_MORE: Final = "<IsTruncated>true</IsTruncated>"


@dataclass(frozen=True, slots=True)
class BegunUpload:
    """What has to be remembered of an upload: which content its parts are of."""

    upload_id: str
    sha256: str
    part_bytes: int


class UploadNotes(Protocol):
    """Of uploads that are not finished, by key. They block on the disk."""

    def get(self, key: str) -> BegunUpload | None: ...

    def put(self, key: str, begun: BegunUpload | None) -> None: ...


@dataclass(frozen=True, slots=True)
class StoredFile:
    """`sha256` is empty for an object that was not put there by this code."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class UploadedFile:
    path: Path
    size: int
    sha256: str


class FileUploads:
    """`tries_max`: how often one part is sent before the upload has failed."""

    def __init__(
        self, requests: SignedRequests, notes: UploadNotes, tries_max: int = limits.ATTEMPTS_MAX
    ) -> None:
        self._requests = requests
        self._notes = notes
        self._tries_max = tries_max

    async def found(self, key: str) -> StoredFile | None:
        try:
            answer = await self._requests.send("HEAD", key)
        except NotFound:
            return None
        headers = {name.lower(): value for name, value in answer.headers.items()}
        size = headers.get("content-length", "")
        return StoredFile(int(size) if size.isdecimal() else -1, headers.get(SHA256_HEADER, ""))

    async def upload(
        self, file: UploadedFile, key: str, now: datetime, on_bytes: Callable[[int], None]
    ) -> None:
        """Have the object. Invalid when the file is no longer as long as it was said to be."""
        headers = {
            SHA256_HEADER: file.sha256,
            _CREATED_HEADER: now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        }
        if file.size <= limits.SENT_PART_BYTES:
            data = await run_sync(_read, file, 0, file.size)
            hashed = (await run_sync(hashlib.sha256, data)).hexdigest()
            await self._requests.send("PUT", key, headers=headers, body=data, payload_sha256=hashed)
        else:
            begun, there = await self._begun(file, key, headers)
            parts = await self._send_parts(file, key, begun, there, on_bytes)
            await self._complete(key, begun, parts)
        stored = await self.found(key)
        if stored is None or stored.size != file.size:
            size = 0 if stored is None else stored.size
            raise StorageFailed(f"the object {key} has {size} bytes, and {file.size} were sent")
        await run_sync(self._notes.put, key, None)

    async def copy(self, key: str, to: str, wanted: StoredFile) -> bool:
        """Have the storage copy an object by itself. Not, where it is too large, or another by now."""
        if wanted.size > limits.COPIED_BYTES_MAX or await self.found(key) != wanted:
            return False
        try:
            await self._requests.send("PUT", to, headers={_COPY_HEADER: self._requests.copy_source(key)})
        except (NotFound, StorageFailed) as error:
            log.info("object_not_copied", object=key, to=to, reason=error.message)
            return False
        return await self.found(to) == wanted

    async def remove(self, key: str) -> None:
        try:
            await self._requests.send("DELETE", key)
        except NotFound:
            return

    async def _begun(
        self, file: UploadedFile, key: str, headers: Mapping[str, str]
    ) -> tuple[BegunUpload, dict[int, str]]:
        """The upload that an earlier life began, with the tags of its parts; else a new one."""
        begun = await run_sync(self._notes.get, key)
        if begun is not None:
            if begun.sha256 == file.sha256:
                try:
                    there = await self._parts(key, begun)
                    log.info("upload_resumed", object=key, parts=len(there))
                    return begun, {
                        number: tag
                        for number, (size, tag) in there.items()
                        if size == _length(file, begun, number)
                    }
                except NotFound:  # It was given up by the storage, which keeps them for some days.
                    pass
            else:
                await self._abort(key, begun)
        text = (await self._requests.send("POST", key, {"uploads": ""}, headers)).body
        if (found := _UPLOAD_ID.search(text)) is None:
            raise StorageFailed(f"the storage has begun no upload of {key}: {text[: limits.ERROR_CHARS_MAX]}")
        begun = BegunUpload(unescape(found[1]), file.sha256, _part_bytes(file.size))
        await run_sync(self._notes.put, key, begun)
        return begun, {}

    async def _abort(self, key: str, begun: BegunUpload) -> None:
        try:
            await self._requests.send("DELETE", key, {"uploadId": begun.upload_id})
        except (NotFound, PeerFailed) as error:  # The storage gives it up by itself.
            log.info("upload_not_aborted", object=key, reason=error.message)

    async def _parts(self, key: str, begun: BegunUpload) -> dict[int, tuple[int, str]]:
        """Sizes and tags of those that have arrived, by number."""
        found: dict[int, tuple[int, str]] = {}
        marker = "0"
        while True:
            query = {"uploadId": begun.upload_id, "part-number-marker": marker}
            text = (await self._requests.send("GET", key, query)).body
            for part in _PART.findall(text):
                number, size, tag = _NUMBER.search(part), _SIZE.search(part), _ETAG.search(part)
                if number and size and tag:
                    found[int(number[1])] = (int(size[1]), unescape(tag[1]))
            after = _NEXT.search(text)
            if _MORE not in text or after is None or after[1] == marker:
                return found
            marker = after[1]

    async def _send_parts(
        self,
        file: UploadedFile,
        key: str,
        begun: BegunUpload,
        there: Mapping[int, str],
        on_bytes: Callable[[int], None],
    ) -> Mapping[int, str]:
        tags = dict(there)
        count = -(-file.size // begun.part_bytes)
        failures: list[Exception] = []
        slots = anyio.CapacityLimiter(limits.SENT_AT_ONCE_MAX)

        def tell() -> None:
            on_bytes(sum(_length(file, begun, number) for number in tags))

        async def send(number: int) -> None:
            async with slots:
                if failures:  # What is on its way arrives; nothing is begun any more.
                    return
                try:
                    tags[number] = await self._send_part(file, key, begun, number)
                except (PeerFailed, NotFound, Invalid) as error:
                    failures.append(error)
                else:
                    tell()

        tell()
        async with anyio.create_task_group() as tasks:
            for number in range(1, count + 1):
                if number not in tags:
                    tasks.start_soon(send, number)
        if failures:
            raise failures[0]
        return tags

    async def _send_part(self, file: UploadedFile, key: str, begun: BegunUpload, number: int) -> str:
        start, length = (number - 1) * begun.part_bytes, _length(file, begun, number)
        data = await run_sync(_read, file, start, length)
        hashed = (await run_sync(hashlib.sha256, data)).hexdigest()
        query = {"uploadId": begun.upload_id, "partNumber": str(number)}
        for attempt in range(1, self._tries_max + 1):
            try:
                answer = await self._requests.send("PUT", key, query, body=data, payload_sha256=hashed)
                headers = {name.lower(): value for name, value in answer.headers.items()}
                return headers.get("etag", "")
            except StorageFailed:
                if attempt == self._tries_max:
                    raise
            await anyio.sleep(limits.BACKOFF.delay(attempt, 0.5).total_seconds())
        raise AssertionError("the last attempt returns or raises")

    async def _complete(self, key: str, begun: BegunUpload, tags: Mapping[int, str]) -> None:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tags[number])}</ETag></Part>"
            for number in sorted(tags)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        hashed = hashlib.sha256(body).hexdigest()
        query = {"uploadId": begun.upload_id}
        text = (await self._requests.send("POST", key, query, body=body, payload_sha256=hashed)).body
        if "<Error>" in text:  # With status 200: the answer had begun before it failed.
            raise StorageFailed(f"the parts of {key} were not put together: {text[: limits.ERROR_CHARS_MAX]}")


def _part_bytes(size: int) -> int:
    least = -(-size // limits.SENT_PARTS_MAX)
    return max(limits.SENT_PART_BYTES, -(-least // (1 << 20)) << 20)


def _length(file: UploadedFile, begun: BegunUpload, number: int) -> int:
    return max(min(begun.part_bytes, file.size - (number - 1) * begun.part_bytes), 0)


def _read(file: UploadedFile, start: int, length: int) -> bytes:
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_size != file.size:
            raise Invalid(f"{file.path} is not as long as it was")
        return os.pread(descriptor, length, start)
    finally:
        os.close(descriptor)
