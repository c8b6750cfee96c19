"""Replicas whose processes a worker stopped for a change of their backend."""

import pytest

from remuda.scheduler.loader import ReplicaWork
from remuda.scheduler.unloader import Unloader
from tests.unit.scheduler.rig import NODE, OTHER_NODE, Rig, a_model

pytestmark = pytest.mark.anyio


def work(rig: Rig) -> ReplicaWork:
    unloader = Unloader(rig.replicas, rig.worker, rig.frontends, rig.operations.live, rig)
    return ReplicaWork(rig.loader(), unloader, rig.replicas, rig)


async def test_stopped_replicas_of_that_node_are_forgotten_and_no_others() -> None:
    rig = Rig()
    await rig.configure(*map(a_model, ("stopped", "elsewhere", "not-named", "coming", "since")))
    await rig.loaded("stopped")
    await rig.loaded("elsewhere", OTHER_NODE)
    await rig.loaded("not-named")
    await rig.claimed("coming")
    known = await work(rig).latest_change()
    await rig.loaded("since")
    rig.changes = 0
    await work(rig).forget_stopped(NODE, ["stopped#0", "elsewhere#0", "coming#0", "since#0"], known)
    assert {row.key.model for row in await rig.rows()} == {"elsewhere", "not-named", "coming", "since"}
    assert rig.changes == 1
