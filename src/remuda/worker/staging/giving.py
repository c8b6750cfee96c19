"""Gives model files to other workers, by addresses that a frontend has signed with this worker's own token.

GET /v1/model-files/{path}?sha256=...&size=...&node=...&expires=...&signature=...     Range is understood.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from remuda.core.clock import Clock
from remuda.core.errors import NotFound, RemudaError, Unavailable
from remuda.core.os_errors import os_reason
from remuda.host.file_ranges import send_file
from remuda.wire.model_file_urls import WORKER_PATH, granted
from remuda.worker.files.keys import checked_parts
from remuda.worker.files.tree import Tree
from remuda.worker.http.server import (
    ROLE,
    Receive,
    Scope,
    Send,
    cut,
    header,
    raw_path,
    refuse,
    refuse_method,
)

log = structlog.get_logger(__name__)

_AT_ONCE_MAX: Final = 16


class GivingPages:
    """`key` is the token that opens this worker; without one nothing is given."""

    def __init__(self, models: Path, key: Callable[[], str], clock: Clock) -> None:
        self._tree = Tree(models)
        self._key = key
        self._clock = clock
        self._at_work = 0

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
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

    async def _give(self, scope: Scope, send: Send) -> None:
        query = scope["query_string"].decode("latin-1")
        now_s = self._clock.now().timestamp()
        grant = granted(WORKER_PATH, self._key(), raw_path(scope), query, now_s)
        if self._at_work >= _AT_ONCE_MAX:
            raise Unavailable(f"{_AT_ONCE_MAX} files are being given already; try again later")
        self._at_work += 1
        try:
            with self._tree.open_file(checked_parts(grant.path)) as descriptor:
                if os.fstat(descriptor).st_size != grant.size:
                    raise NotFound("there is another file of that name")
                wanted = (header(scope, b"range") or b"").decode("latin-1")
                if not await send_file(send, descriptor, wanted, [ROLE], head=scope["method"] == "HEAD"):
                    cut(scope)
        finally:
            self._at_work -= 1
