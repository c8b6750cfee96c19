"""A worker out of reach while files are copied to it may come back; after a while it is given up."""

import anyio
import pytest

from remuda.core.errors import Problem
from remuda.ops.model import Step
from remuda.scheduler.catalogue import Catalogued
from remuda.scheduler.model import ReplicaState
from remuda.scheduler.stager import BACK_WITHIN_S, Staged, Stager
from remuda.scheduler.worker_calls import Installing
from tests.support.virtual_ops import time_passes
from tests.unit.scheduler.rig import Rig

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig() -> Rig:
    made = Rig()
    await made.configure()
    return made


class Copying(Stager):
    """Copies for as long as nobody says that it has all arrived."""

    def __init__(self) -> None:
        self.arrived = anyio.Event()

    async def stage(self, step: Step, model: Catalogued, asking: Installing) -> Staged:
        await self.arrived.wait()
        return Staged()


async def test_machine_that_comes_back_while_files_are_copied_goes_on(rig: Rig) -> None:
    """Its worker was killed, and what has arrived is still there."""
    stager = Copying()
    _, step = await rig.claimed()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.loader(stager=stager).load, step)
        for _ in range(3):
            rig.worker_http.up = False
            await time_passes(BACK_WITHIN_S / 2)
            rig.worker_http.up = True
            await time_passes(BACK_WITHIN_S / 2)
        stager.arrived.set()
    assert (await rig.row()).state is ReplicaState.LOADED


async def test_machine_that_stays_away_while_files_are_copied_ends_the_load(rig: Rig) -> None:
    rig.worker_http.up = False
    _, step = await rig.claimed()
    began_s = anyio.current_time()
    problem = await rig.loader(stager=Copying()).load(step)
    assert isinstance(problem, Problem)
    assert problem.message == "gpu-1 answers neither over HTTP nor over the bus"
    assert anyio.current_time() - began_s < BACK_WITHIN_S * 2, (
        "in virtual time: long before the load's own limit"
    )
    assert await rig.rows() == ()
