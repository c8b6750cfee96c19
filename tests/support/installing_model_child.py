"""A frontend's share of installing one model, with its store, reconciler and disk, made to be killed: the
next one goes on with the operation that the first one began.

    python -m tests.support.installing_model_child ROOT SOURCE
"""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio

from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.log import configure
from remuda.core.retry import Backoff
from remuda.hubs.hubs import HubAccess, open_hubs
from remuda.oci.transport import RetryPolicy
from remuda.ops.model import OpId, State
from remuda.ops.ports import Filter
from remuda.store.database import open_database
from tests.support.clocks import HostClock
from tests.support.memory_bus import MemoryBroker
from tests.support.model_rig import ModelFrontend, model_frontend
from tests.support.virtual_ops import connected

DONE: Final = "done"
_WITHIN_S: Final = 120.0
# Who is about to be killed gets nothing for a while, which is no failure of the source.
_SOON: Final = RetryPolicy(backoff=Backoff(timedelta(milliseconds=10), timedelta(milliseconds=50)))


async def operation(frontend: ModelFrontend, source: str) -> OpId:
    begun = await frontend.ops.store.views(Filter())
    return begun[0].operation.id if begun else await frontend.install(source)


async def install(root: Path, source: str) -> None:
    clock = HostClock()
    database = await open_database(f"sqlite:///{root}/remuda.db", clock=SystemClock())
    async with (
        connected(MemoryBroker(clock), clock, "front") as bus,
        open_hubs(SystemClock(), SystemEntropy(), HubAccess(env={}), retry=_SOON) as hubs,
        model_frontend(bus, database, root, hubs) as frontend,
    ):
        step = await frontend.ended(await operation(frontend, source), _WITHIN_S)
        assert step.state is State.SUCCEEDED, step
        print(DONE, flush=True)
    await database.close()


def main() -> None:
    configure("error")
    anyio.run(install, Path(sys.argv[1]), sys.argv[2])


if __name__ == "__main__":
    main()
