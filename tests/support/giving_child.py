"""A process that gives the files of one folder of models, as a worker or as a frontend does, and is made to
be killed. Addresses are signed with `KEY`.

    python -m tests.support.giving_child node|frontend PORT MODELS
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import anyio
from fastapi import FastAPI

from remuda.core.clock import SystemClock
from remuda.core.log import configure
from remuda.gateway import model_files
from remuda.gateway.services import GivenFiles, services
from remuda.host.ports import listen
from remuda.worker.http.server import App, serve
from remuda.worker.staging.giving import GivingPages

KEY: Final = "key-of-those-who-give"
LISTENING: Final = "listening"
HOST: Final = "127.0.0.1"
FRONTEND: Final = "frontend"


def pages_of_frontend(models: Path) -> App:
    given = SimpleNamespace(serving=SimpleNamespace(files=GivenFiles(models, KEY, SystemClock())))
    app = FastAPI()
    app.include_router(model_files.routes)
    app.dependency_overrides[services] = lambda: given
    return app


async def give(who: str, port: int, models: Path) -> None:
    worker = GivingPages(models, lambda: KEY, SystemClock())
    app = pages_of_frontend(models) if who == FRONTEND else worker
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve, app, listen(HOST, port))
        print(LISTENING, flush=True)


def main() -> None:
    who, port, models = sys.argv[1:]
    configure("error")
    anyio.run(give, who, int(port), Path(models))


if __name__ == "__main__":
    main()
