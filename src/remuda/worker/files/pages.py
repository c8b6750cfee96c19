"""The worker's file server, as section 7 of the contract has it.

HEAD, PUT, GET /v1/files/{key}     POST /v1/files/temp     GET /v1/files-list/{key}

and of ours: DELETE /v1/files/{key}, for the files of a request that is over; of any other file 405, as from a
LocalAI worker.

Errors are plain text. The key is everything after the prefix, decoded once.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote_to_bytes

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.entropy import Entropy
from remuda.core.errors import Invalid, NotFound, RemudaError, Unavailable
from remuda.core.os_errors import os_reason
from remuda.oci.errors import DiskFull
from remuda.worker.files import limits
from remuda.worker.files.areas import FileAreas
from remuda.worker.files.hashes import Hashes
from remuda.worker.files.keys import OUTPUT_PREFIX, OUTPUT_SUFFIX, Area, FilePlace, place_of
from remuda.worker.files.tree import NotAFolder, list_files
from remuda.worker.files.upload_rules import ContentRange, OtherContent, WrongStart, parse_hash, parse_range
from remuda.worker.files.uploads import Continues, Stored, Uploads
from remuda.worker.http.server import (
    CODE_HEADER,
    JSON,
    ROLE,
    AsgiReceive,
    AsgiSend,
    HeaderLine,
    Scope,
    answer,
    cut,
    header,
    is_path_alone,
    raw_path,
    refuse,
    refuse_method,
)

log = structlog.get_logger(__name__)

_FILES: Final = "/v1/files/"
_LIST: Final = "/v1/files-list/"
_TEMP: Final = "/v1/files/temp"
_OCTETS: Final = b"application/octet-stream"
_METHODS: Final = b"GET, HEAD, PUT"


class FilePages:
    """An ASGI application for the paths below /v1/files. Who calls it has shown the token."""

    def __init__(self, areas: FileAreas, hashes: Hashes, uploads: Uploads, entropy: Entropy) -> None:
        self._areas = areas
        self._hashes = hashes
        self._uploads = uploads
        self._entropy = entropy
        self._downloads = 0

    async def __call__(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        try:
            await self._answer(scope, receive, send)
        except DiskFull as full:
            code = (CODE_HEADER, full.code.encode())
            await answer(scope, send, 507, full.public_text, more=[code])
        except RemudaError as error:
            await refuse(scope, send, error)
        except OSError as error:
            log.warning("file_request_failed", path=raw_path(scope)[:200], error=str(error))
            await answer(scope, send, 500, os_reason(error))

    async def _answer(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        path = raw_path(scope)
        if scope["type"] != "http":
            raise NotFound("not found")
        method = scope["method"]
        if path.startswith(_LIST):
            await (self._list(scope, send) if method == "GET" else refuse_method(scope, send, b"GET"))
        elif not path.startswith(_FILES):
            raise NotFound("not found")
        elif method == "HEAD":
            await self._head(_place(scope), send)
        elif method == "GET":
            await self._get(_place(scope), scope, send)
        elif method == "PUT":
            await self._put(_place(scope), scope, receive, send)
        elif method == "DELETE" and (place := _place(scope)).of_request:
            await self._uploads.remove(place)
            await send({"type": "http.response.start", "status": 204, "headers": [ROLE]})
            await send({"type": "http.response.body", "body": b""})
        elif method != "POST":
            await refuse_method(scope, send, _METHODS)
        elif path == _TEMP:
            await self._temp(scope, send)
        else:
            raise NotFound("not found")

    async def _head(self, place: FilePlace, send: AsgiSend) -> None:
        found = await run_sync(self._areas.find, place, self._hashes)
        if found.partial is not None:
            size, target = found.partial.size, found.partial.target
            hashed = [(b"x-target-sha256", target.encode())] if target else []
        else:
            whole = await self._hashes.of(self._areas.tree(place), place.parts)
            size, hashed = whole.size, [(b"x-content-sha256", whole.sha256.encode())]
        headers = [
            (b"x-local-path", self._areas.local_path(place).encode()),
            (b"x-file-size", b"%d" % size),
            (b"accept-ranges", b"bytes"),
            *hashed,
            ROLE,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _put(self, place: FilePlace, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        wanted, sha256 = _content_range(scope), parse_hash(_text(scope, b"x-content-sha256"))
        outcome = await self._uploads.put(place, wanted, sha256, _announced(scope), receive)
        match outcome:
            case Stored(path):
                await _told(scope, send, {"local_path": path})
            case Continues(size, gave_up):
                more: list[HeaderLine] = [(b"range", b"bytes=0-%d" % (size - 1))] if size else []
                more += [(b"connection", b"close")] if gave_up else []
                await _empty(send, 308, [*more, (b"x-file-size", b"%d" % size)])
            case WrongStart(size):
                assert wanted is not None, "only a range begins somewhere"
                unsatisfied = [
                    (b"content-range", b"bytes */%d" % wanted.total),
                    (b"x-file-size", b"%d" % size),
                ]
                words = f"the range does not begin at {size}, where the file ends"
                await answer(scope, send, 416, words, more=unsatisfied)
            case OtherContent():
                words = "what arrived before belongs to a file with another hash; it was removed"
                await answer(scope, send, 409, words)

    async def _get(self, place: FilePlace, scope: Scope, send: AsgiSend) -> None:
        """What is not whole is not there."""
        with self._one_download():
            found = await run_sync(self._areas.find, place, self._hashes)
            if found.whole is None:
                raise NotFound("not found")
            with self._areas.tree(place).open_file(place.parts) as descriptor:
                size = os.fstat(descriptor).st_size
                headers = [(b"content-type", _OCTETS), (b"content-length", b"%d" % size), ROLE]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                if not await _sent(descriptor, size, send):
                    cut(scope)

    @contextmanager
    def _one_download(self) -> Iterator[None]:
        if self._downloads >= limits.DOWNLOADS_AT_ONCE_MAX:
            raise Unavailable(f"{limits.DOWNLOADS_AT_ONCE_MAX} downloads are under way; try again later")
        self._downloads += 1
        try:
            yield
        finally:
            self._downloads -= 1

    async def _temp(self, scope: Scope, send: AsgiSend) -> None:
        name = f"{OUTPUT_PREFIX}{self._entropy.token(12)}{OUTPUT_SUFFIX}"
        path = await run_sync(self._areas.temporary, Area.STAGING, (), name)
        await _told(scope, send, {"local_path": path})

    async def _list(self, scope: Scope, send: AsgiSend) -> None:
        place = place_of(_key(scope, _LIST), folder=True)
        try:
            files = await run_sync(list_files, self._areas.tree(place), place.parts)
        except NotAFolder:
            raise NotFound("not found") from None
        await _told(scope, send, {"files": files or None})


async def _sent(descriptor: int, size: int, send: AsgiSend) -> bool:
    """False: the caller takes nothing any more, or the file has become shorter."""
    position, more = 0, True
    while more:
        data = await run_sync(os.pread, descriptor, min(limits.READ_BYTES, size - position), position)
        position += len(data)
        more = position < size
        if more and not data:
            return False
        with anyio.move_on_after(limits.STALL_S) as patience:
            await send({"type": "http.response.body", "body": data, "more_body": more})
        if patience.cancelled_caught:
            return False
    return True


def _place(scope: Scope) -> FilePlace:
    return place_of(_key(scope, _FILES))


def _key(scope: Scope, prefix: str) -> str:
    if not is_path_alone(scope):
        raise Invalid("invalid path: escape a question mark as %3F, and a # as %23")
    sent = raw_path(scope).removeprefix(prefix).encode("latin-1")
    try:
        return unquote_to_bytes(sent).decode()
    except UnicodeDecodeError:
        raise Invalid("invalid path: not valid UTF-8") from None


def _text(scope: Scope, name: bytes) -> str:
    return (header(scope, name) or b"").decode("latin-1")


def _content_range(scope: Scope) -> ContentRange | None:
    given = header(scope, b"content-range")
    return None if given is None else parse_range(given.decode("latin-1"))


def _announced(scope: Scope) -> int | None:
    """The parser has seen to it that it is a number."""
    given = header(scope, b"content-length")
    return None if given is None else int(given)


async def _told(scope: Scope, send: AsgiSend, document: object) -> None:
    await answer(scope, send, 200, json.dumps(document), JSON)


async def _empty(send: AsgiSend, status: int, headers: list[HeaderLine]) -> None:
    headers = [(b"content-length", b"0"), ROLE, *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
