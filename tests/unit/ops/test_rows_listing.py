"""Whom a frontend asks what they have, and whom it need not ask."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from remuda.core.entropy import SeededEntropy
from remuda.core.errors import Problem, Unavailable
from remuda.core.events import Notifier
from remuda.core.ids import BootId, FrontendId, NodeId
from remuda.fleet.health import NodeStatus, Standing
from remuda.fleet.verdicts import ObservedNode
from remuda.gallery.model import Gallery, Reading
from remuda.gallery.sources import GalleryView
from remuda.ops.failures import START_FAILED
from remuda.ops.model import Kind, Source, State
from remuda.ops.ports import Build, Pin
from remuda.ops.progress_board import ProgressBoard
from remuda.ops.service import OperationRequest, Operations, Policy
from remuda.store.ops import SqlOpStore
from tests.support.clocks import HostClock
from tests.support.fleet_tables import fresh_database
from tests.support.virtual_loop import run_virtually
from tests.unit.ops.fleet import a_node, artifact

ASKED = {
    NodeStatus.HEALTHY: a_node("healthy", foreign=True),
    NodeStatus.UNHEALTHY: a_node("unhealthy", foreign=True, silent_s=40),
}
NOT_ASKED = {
    NodeStatus.PENDING: a_node("pending", foreign=True, approved=False),
    NodeStatus.DRAINING: a_node("draining", foreign=True, drained=True),
    NodeStatus.OFFLINE: a_node("offline", foreign=True, silent_s=3000),
}


class _NoGalleries:
    async def read(self, *, refresh: bool = False) -> tuple[Reading, ...]:
        return ()


class _NoRegistry:
    async def pin(self, build: Build) -> Pin:
        return Pin()


class _Listener:
    def __init__(self) -> None:
        self.asked: list[NodeId] = []

    def want(self, nodes: Iterable[tuple[NodeId, BootId]], *, anew: bool = False) -> None:
        self.asked += [node for node, _ in nodes]


def operations_over(
    nodes: Sequence[ObservedNode], lister: _Listener, store: SqlOpStore | None = None
) -> Operations:
    """Their galleries are never read: nobody runs the view of them."""
    clock = HostClock()
    store = store or SqlOpStore(fresh_database(clock)[0])

    async def standings() -> Sequence[Standing]:
        return [node.standing for node in nodes]

    def none_of(galleries: tuple[Gallery, ...]) -> _NoGalleries:
        return _NoGalleries()

    return Operations(
        store,
        standings,
        GalleryView(_NoGalleries(), none_of),
        _NoRegistry(),
        lister,
        ProgressBoard(store, clock),
        clock=clock,
        entropy=SeededEntropy(1),
        policy=Policy(),
        signal=Notifier(),
    )


def asked_of(*nodes: ObservedNode) -> set[str]:
    lister = _Listener()

    async def look() -> None:
        await operations_over(nodes, lister).nodes()

    run_virtually(look)
    return {node.removeprefix("id-") for node in lister.asked}


def test_the_same_reference_is_the_same_wish_whichever_of_its_names_were_given() -> None:
    uri = "registry.example/me/mine:v1"

    async def submit() -> None:
        operations = operations_over([a_node("one")], _Listener())
        given = (
            Source("", uri=uri),
            Source("", uri=uri, name="mine"),
            Source("mine", uri=uri, name="mine"),
            Source("mine", uri=f"oci://{uri}"),
        )
        first, *others = [await operations.submit(OperationRequest(Kind.INSTALL, source)) for source in given]
        assert [(one.joined, one.view.operation.id) for one in others] == [
            (True, first.view.operation.id)
        ] * 3
        assert first.view.operation.source.backend == "mine", "so that lists can be narrowed to it"

    run_virtually(submit)


def test_an_install_of_what_did_not_start_last_time_starts_it_again() -> None:
    not_started = Problem(START_FAILED, "installed, but it ended with exit code 1", retryable=True)
    asked = OperationRequest(Kind.INSTALL, Source("mine", uri="registry.example/me/mine:v1"))

    async def submit() -> None:
        store = SqlOpStore(fresh_database(HostClock())[0])
        has = a_node("one", artifact("mine", uri="registry.example/me/mine:v1"))
        operations = operations_over([has], _Listener(), store)
        for problem in (not_started, None):
            [step] = (await operations.submit(asked)).view.steps
            assert step.problem == (not_started if problem is None else None)
            state = State.SUCCEEDED if problem is None else State.FAILED
            ended = replace(step, state=state, problem=problem)
            await store.commit([ended], FrontendId("one"), timedelta(seconds=20))
        [step] = (await operations.submit(asked)).view.steps
        assert step.problem is None, "it has started since"

    run_virtually(submit)


def test_an_install_from_a_plain_reference_does_not_wait_for_galleries() -> None:
    async def submit() -> None:
        operations = operations_over([a_node("one")], _Listener())
        source = Source("mine", uri="registry.example/me/mine:v1", name="mine")
        accepted = await operations.submit(OperationRequest(Kind.INSTALL, source))
        assert [step.node_name for step in accepted.view.steps] == ["one"]
        with pytest.raises(Unavailable, match="being read for the first time"):
            await operations.submit(OperationRequest(Kind.INSTALL, Source("llama-cpp")))

    run_virtually(submit)


def test_the_nodes_below_are_what_they_are_called() -> None:
    for status, node in (ASKED | NOT_ASKED).items():
        assert node.standing.status is status


def test_a080_healthy_and_unhealthy_nodes_are_asked_what_they_have() -> None:
    assert asked_of(*ASKED.values()) == {"healthy", "unhealthy"}


@pytest.mark.parametrize("status", NOT_ASKED)
def test_a080_pending_draining_and_offline_nodes_are_not_asked(status: NodeStatus) -> None:
    assert asked_of(NOT_ASKED[status]) == set()
