"""Gives model files to other workers, by addresses that a frontend has signed with this worker's own token.

GET /v1/model-files/{path}?sha256=...&size=...&node=...&expires=...&signature=...     Range is understood.

A file that this worker is fetching itself is given as it comes, so that many workers that want it at once
form a chain. The receiver verifies it.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.to_thread import run_sync

from remuda.core.clock import Clock
from remuda.core.errors import Invalid, NotFound, RemudaError, Unavailable
from remuda.core.os_errors import os_reason
from remuda.host.file_ranges import send_file
from remuda.oci.blobs import BlobStore
from remuda.wire.model_file_urls import WORKER_PATH, FileGrant, granted, seconds_to_wait
from remuda.worker.files.keys import checked_parts
from remuda.worker.files.tree import Tree
from remuda.worker.http.server import (
    ROLE,
    AsgiReceive,
    AsgiSend,
    Scope,
    cut,
    header,
    raw_path,
    refuse,
    refuse_method,
)
from remuda.worker.staging.placing import store_root

log = structlog.get_logger(__name__)

_AT_ONCE_MAX: Final = 16
_WAIT_S_MAX: Final = 10  # For a file that is about to come. Receivers wait a little longer for an answer.
_LOOK_S: Final = 0.1


class GivingPages:
    """`key` is the token that opens this worker; without one nothing is given."""

    def __init__(self, models: Path, key: Callable[[], str], clock: Clock) -> None:
        self._models = models
        self._tree = Tree(models)
        self._key = key
        self._clock = clock
        self._at_work = 0

    async def __call__(self, scope: Scope, _receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] != "http":
            await refuse(scope, send, NotFound("not found"))
        elif scope["method"] not in ("GET", "HEAD"):
            await refuse_method(scope, send, b"GET, HEAD")
        else:
            try:
                await self._give(scope, send)
            except RemudaError as error:
                await refuse(scope, send, error)
            except OSError as error:
                log.warning("model_file_not_given", error=str(error))
                await refuse(scope, send, Unavailable(f"the file cannot be read: {os_reason(error)}"))

    async def _give(self, scope: Scope, send: AsgiSend) -> None:
        query = scope["query_string"].decode("latin-1")
        now_s = self._clock.now().timestamp()
        grant = granted(WORKER_PATH, self._key(), raw_path(scope), query, now_s)
        if self._at_work >= _AT_ONCE_MAX:
            raise Unavailable(f"{_AT_ONCE_MAX} files are being given already; try again later")
        self._at_work += 1
        try:
            wanted = (header(scope, b"range") or b"").decode("latin-1")
            with await self._opened(grant, seconds_to_wait(query)) as file:
                grows = None if file.whole else grant.size
                is_head = scope["method"] == "HEAD"
                if not await send_file(
                    send, file.descriptor, wanted, [ROLE], head=is_head, whole_bytes=grows
                ):
                    cut(scope)
        finally:
            self._at_work -= 1

    async def _opened(self, grant: FileGrant, wait_s: int) -> "_Open":
        parts = checked_parts(grant.path)
        deadline = anyio.current_time() + min(wait_s, _WAIT_S_MAX)
        while True:
            file = await run_sync(self._found, grant, parts)
            if file is not None:
                return file
            if anyio.current_time() >= deadline:
                raise NotFound("this worker does not have that file")
            await anyio.sleep(_LOOK_S)

    def _found(self, grant: FileGrant, parts: Sequence[str]) -> "_Open | None":
        try:
            with self._tree.open_file(parts) as descriptor:
                if os.fstat(descriptor).st_size == grant.size:
                    return _Open(os.dup(descriptor), whole=True)
        except NotFound:
            pass
        # A file that is about to be replaced has another size, or another content that nothing tells from
        # here: the receiver notices.
        if not self._models.is_dir():
            return None
        try:
            coming = BlobStore(store_root(self._models)).open_as_it_comes(f"sha256:{grant.sha256}")
        except Invalid:
            return None
        return None if coming is None else _Open(coming, whole=False)


class _Open:
    """Owns the descriptor."""

    def __init__(self, descriptor: int, *, whole: bool) -> None:
        self.descriptor = descriptor
        self.whole = whole

    def __enter__(self) -> "_Open":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
