"""Connections last as long as replicas do."""

from collections.abc import Collection

import anyio
import pytest

from remuda.core.ids import NodeId, ReplicaKey
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import ModelConfig
from remuda.router.live_table import Tables, close_stale_connections
from remuda.router.table import Route, RoutedModel, Table
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

HERE, THERE = ReplicaEndpoint("here:1"), ReplicaEndpoint("there:1")


class Connected:
    def __init__(self) -> None:
        self.to = {HERE, THERE}

    async def forget(self, in_use: Collection[ReplicaEndpoint]) -> None:
        self.to &= set(in_use)


def a_table(*endpoints: ReplicaEndpoint) -> Table:
    routes = tuple(
        Route(ReplicaKey("qwen", index), NodeId("n"), "n", endpoint)
        for index, endpoint in enumerate(endpoints)
    )
    return Table({"qwen": RoutedModel(ModelConfig(name="qwen", backend="echo"), routes)})


async def test_replica_that_is_gone_is_hung_up_on_and_no_other() -> None:
    tables, connected = Tables(), Connected()
    tables.replace(a_table(HERE, THERE))
    async with anyio.create_task_group() as tasks:
        await tasks.start(close_stale_connections, tables, connected)
        await anyio.wait_all_tasks_blocked()
        both = set(connected.to)
        tables.replace(a_table(HERE))
        await wait_until(lambda: connected.to == {HERE})
        tasks.cancel_scope.cancel()

    assert both == {HERE, THERE}
