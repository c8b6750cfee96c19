"""The files of models on this frontend, for workers that fetch them by signed addresses."""

import os
from pathlib import Path
from typing import Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from remuda.core.errors import Invalid, NotFound
from remuda.gateway.messages import Responses, gives_raw
from remuda.gateway.services import Svc
from remuda.host.file_ranges import send_file
from remuda.models.files import path_fault
from remuda.wire.model_file_urls import FRONTEND_PATH

routes = APIRouter(tags=["nodes"])
_PARTS: Final[Responses] = {
    206: {"content": {"application/octet-stream": {"schema": {"type": "string"}}}},
    416: {"description": "There are no such bytes."},
}


class _FileAnswer(Response):
    """Owns the descriptor."""

    def __init__(self, descriptor: int, wanted: str) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._wanted = wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send_file(send, self._descriptor, self._wanted, head=scope["method"] == "HEAD")
        finally:
            os.close(self._descriptor)


@routes.get(
    f"{FRONTEND_PATH}{{path:path}}",
    response_class=Response,
    responses=gives_raw("application/octet-stream", 400, 404) | _PARTS,
)
async def give_file(path: str, request: Request, svc: Svc) -> Response:
    """A file of a model, to the worker that the address was signed for. Range is understood. No key is asked
    for: the signature is one, and expires within minutes."""
    files = svc.serving.files
    grant = files.granted(request.scope["raw_path"].decode("latin-1"), request.url.query)
    descriptor = await run_sync(_opened, files.folder, grant.path, grant.size)
    return _FileAnswer(descriptor, request.headers.get("range", ""))


def _opened(folder: Path, path: str, size: int) -> int:
    """Links are followed: people keep models where there is room. Blocks on the disk."""
    if fault := path_fault(path):
        raise Invalid(f"not a path of a model's file: {fault}")
    try:
        descriptor = os.open(folder / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        raise NotFound("this frontend does not have that file") from None
    if os.fstat(descriptor).st_size != size:
        os.close(descriptor)
        raise NotFound("this frontend has another file of that name by now")
    return descriptor
