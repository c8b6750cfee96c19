"""What a machine with nothing but Python needs to join: a script, and this very program as a wheel."""

import hashlib

import anyio.to_thread
from fastapi import APIRouter, Depends, Request, Response

from remuda.core.errors import NotFound
from remuda.gateway.guards import require_admin
from remuda.gateway.messages import answer, gives, gives_raw
from remuda.gateway.services import Svc
from remuda.wire.admin import JoinLines

routes = APIRouter(tags=["join"])


@routes.get("/api/join-line", responses=gives(JoinLines, 401, 409), dependencies=[Depends(require_admin)])
async def join_line(svc: Svc) -> Response:
    """What to run on another machine so that it joins this frontend. 409: no other machine can reach it."""
    return answer(svc.join_lines())


@routes.get("/join.py", response_class=Response, responses=gives_raw("text/x-python"))
async def join_script(request: Request, svc: Svc) -> Response:
    """A script for any Python 3 that installs this frontend's Remuda and runs it. It holds no secret."""
    name, content = await anyio.to_thread.run_sync(svc.wheel)
    address = f"{request.url.scheme}://{request.url.netloc}/join/{name}"
    script = svc.join_script(address, hashlib.sha256(content).hexdigest())
    return Response(script, media_type="text/x-python")


@routes.get("/join/{wheel_name}", response_class=Response, responses=gives_raw("application/zip", 404))
async def wheel(wheel_name: str, svc: Svc) -> Response:
    """The wheel that the script installs."""
    name, content = await anyio.to_thread.run_sync(svc.wheel)
    if wheel_name != name:
        raise NotFound(f"there is no {wheel_name!r} here; the wheel is {name}")
    return Response(content, media_type="application/zip")
