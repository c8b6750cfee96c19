"""A worker's door to backends that speak HTTP, before one server that runs already, which stands for all
processes.

    python -m bench.worker_door PORT_OF_THE_SERVER PORT
"""

import sys
import tempfile
from pathlib import Path

import uvloop
from pydantic import SecretStr

from remuda.core.clock import SystemClock
from remuda.host.ports import listen
from remuda.wire.models import ModelsRunningReply
from remuda.worker.enrolment import OpeningTokens
from remuda.worker.http.app import TokenGuard, application
from remuda.worker.http.backend_proxy import open_door
from remuda.worker.http.server import serve
from remuda.worker.processes.logs import ProcessLogs

TOKEN = "bench"


async def _nothing_runs() -> ModelsRunningReply:
    return ModelsRunningReply()


async def run(server_port: int, port: int) -> None:
    with tempfile.TemporaryDirectory(prefix="remuda-bench-") as folder:
        guard, logs = TokenGuard(OpeningTokens(SecretStr(TOKEN))), ProcessLogs(Path(folder), SystemClock())
        async with open_door(lambda _: server_port) as door:
            app = application(lambda: "", guard, logs, door, _nothing_runs)
            await serve(app, listen("127.0.0.1", port))


if __name__ == "__main__":
    uvloop.run(run(int(sys.argv[1]), int(sys.argv[2])))
