"""Calls to backends on this machine: health checks, and freeing memory. Bounded, and none raises."""

import asyncio
from importlib import import_module
from typing import Final, assert_never

import anyio
from anyio import to_thread

from remuda.host.ports import LOOPBACK, nothing_listens
from remuda.worker.processes.model import USUAL, BackendTimeouts, HealthResult, Protocol, Recipe, in_short

_GRPC_CALLS: Final = "remuda.worker.processes.grpc_calls"
_FAREWELL_S = 0.1
_HEAD_BYTES_MAX = 8192


class BackendCalls:
    """`Backends` on loopback. Each gRPC backend is called with the token that it was started with."""

    def __init__(self, timeouts: BackendTimeouts = USUAL) -> None:
        self._health_s, self._free_s = timeouts.call.total_seconds(), timeouts.free.total_seconds()
        self._grpc_imported = False

    async def health(self, port: int, recipe: Recipe) -> HealthResult:
        match recipe.protocol:
            case Protocol.GRPC:
                if await nothing_listens(port):  # Told at a tenth of the price of a call.
                    return HealthResult.when_refused(port)
                await self._import_grpc()
                from remuda.worker.processes import grpc_calls

                return await grpc_calls.health(port, recipe.token, self._health_s)
            case Protocol.HTTP:
                return await _http_health(port, recipe.health_path, self._health_s)
        assert_never(recipe.protocol)

    async def free(self, port: int, recipe: Recipe) -> str:
        """Empty when it let go of its memory, else why not."""
        if recipe.protocol is Protocol.HTTP:
            return "HTTP backends have no such call"
        await self._import_grpc()
        from remuda.worker.processes import grpc_calls

        return await grpc_calls.free(port, recipe.token, self._free_s)

    async def _import_grpc(self) -> None:
        """In a thread, for it takes a tenth of a second. A worker without such backends goes without."""
        if not self._grpc_imported:
            await to_thread.run_sync(import_module, _GRPC_CALLS)
            self._grpc_imported = True


async def _http_health(port: int, path: str, limit_s: float) -> HealthResult:
    try:
        with anyio.fail_after(limit_s):
            line = await _status_line(port, path)
    except TimeoutError:
        return HealthResult.when_silent(port, limit_s)
    except ConnectionRefusedError:
        return HealthResult.when_refused(port)
    except (OSError, ValueError) as error:  # ValueError: a line without an end.
        return HealthResult(words=f"what listens on port {port} does not speak HTTP: {in_short(str(error))}")
    words = line.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith("HTTP/"):
        return HealthResult(words=f"what listens on port {port} does not speak HTTP")
    if words[1] == "200":
        return HealthResult(healthy=True)
    return HealthResult(words=f"GET {path} answers {in_short(' '.join(words[1:]))}")


async def _status_line(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection(LOOPBACK, port, limit=_HEAD_BYTES_MAX)
    try:
        head = f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        line = await reader.readline()
        with anyio.move_on_after(
            _FAREWELL_S
        ):  # Some servers log an error when the response is not read to its end.
            while await reader.read(_HEAD_BYTES_MAX):
                pass
    finally:
        writer.close()
    return line.decode("latin-1").strip()
