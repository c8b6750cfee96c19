"""Progress events: what they say, how often they go out, and that nobody waits for them."""

import json
from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import BusUnusable, Conflict
from remuda.core.ids import NodeId
from remuda.oci.fetch import FileProgress, PullPhase
from remuda.oci.model import Descriptor
from remuda.wire.backends import InstallPhase, InstallProgress
from remuda.wire.codec import decode
from remuda.worker.commands import limits
from remuda.worker.commands.running_work import InstallSteps, Outlet, Publisher, publishing
from remuda.worker.depot.fetch_unpack import InstallTracker

pytestmark = pytest.mark.anyio

LAYERS = tuple(
    Descriptor(media_type="layer", digest=f"sha256:{name}", size=size)
    for name, size in (("a", 3 << 20), ("b", 1 << 20))
)
IMAGE = "registry.example/backends:x"


def event(percentage: float) -> InstallProgress:
    return InstallProgress(op_id="o-1", backend="x", percentage=percentage)


class Sent:
    def __init__(self) -> None:
        self.events: list[InstallProgress] = []

    async def __call__(self, event: InstallProgress) -> None:
        self.events.append(event)

    @property
    def percentages(self) -> list[float]:
        return [event.percentage for event in self.events]


def told(*files: FileProgress) -> list[InstallProgress]:
    """The events of a pull of LAYERS in which these things are noticed."""
    tally = InstallSteps("o-1", "x")
    tally.source = IMAGE
    events: list[InstallProgress] = []
    tracker = InstallTracker(lambda step: events.append(tally.stepped(step)))
    tracker.begin()
    tracker.expect(LAYERS)
    for file in files:
        tracker.observe(file)
    return events


async def test_each_operation_has_a_subject_of_its_own() -> None:
    """Row A024."""
    published: list[str] = []

    async def publish(subject: str, payload: bytes) -> None:
        published.append(subject)

    outlet = Outlet()
    outlet.lead_to(NodeId("n.1"), publish)
    for op_id in ("a", "b.c"):
        await outlet.send(InstallProgress(op_id=op_id))

    assert published == [
        "nodes.n-1.backend.install.a.progress",
        "nodes.n-1.backend.install.b-c.progress",
    ]


async def test_event_carries_operation_node_backend_sizes_and_phase() -> None:
    """Row A025."""
    payloads: list[bytes] = []

    async def publish(subject: str, payload: bytes) -> None:
        payloads.append(payload)

    outlet = Outlet()
    outlet.lead_to(NodeId("n1"), publish)
    await outlet.send(told(FileProgress("sha256:b", 1 << 19, 1 << 20))[-1])

    assert json.loads(payloads[0]) == {
        "op_id": "o-1",
        "node_id": "n1",
        "backend": "x",
        "file_name": f"Downloading 2/2 {IMAGE}",
        "current": "512.0 KiB",
        "total": "4.0 MiB",
        "percentage": 6.25,
        "phase": "downloading",
        "seq": 4,
        "current_bytes": 1 << 19,
        "total_bytes": 4 << 20,
        "overall": 6.25,
    }
    assert decode(InstallProgress, payloads[0]).op_id == "o-1"


def test_phases_are_the_words_of_the_protocol() -> None:
    """Row A026."""
    assert list(InstallPhase) == ["resolving", "downloading", "extracting", "starting"]
    assert {phase.value for phase in PullPhase} <= set(InstallPhase)


def test_phase_is_the_true_one() -> None:
    whole = [FileProgress(layer.digest, layer.size, layer.size) for layer in LAYERS]
    unpacked = FileProgress("sha256:a", 3 << 20, 3 << 20, PullPhase.EXTRACTING)
    tally = InstallSteps("o-1", "x")

    phases = [event.phase for event in (*told(*whole, unpacked), tally.starting())]

    assert list(dict.fromkeys(phases)) == ["resolving", "downloading", "extracting", "starting"]


def test_unpacking_counts_its_own_bytes() -> None:
    whole = [FileProgress(layer.digest, layer.size, layer.size) for layer in LAYERS]
    last = told(*whole, FileProgress("sha256:a", 1 << 20, 3 << 20, PullPhase.EXTRACTING))[-1]

    assert (last.file_name, last.current_bytes, last.total_bytes) == (
        f"Extracting {IMAGE}",
        1 << 20,
        4 << 20,
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(LAYERS), st.integers(0, 4 << 20), st.sampled_from(list(PullPhase)[1:])),
        max_size=30,
    )
)
def test_overall_neither_falls_nor_passes_100_and_seq_grows(
    seen: list[tuple[Descriptor, int, PullPhase]],
) -> None:
    events = told(*(FileProgress(layer.digest, done, layer.size, phase) for layer, done, phase in seen))

    assert all(
        before.overall <= after.overall and before.seq < after.seq for before, after in pairwise(events)
    )
    assert all(0 <= event.overall == event.percentage <= 100 for event in events)


async def test_first_event_goes_out_at_once_and_the_latest_wins_inside_the_window() -> None:
    """Row A028."""
    sent = Sent()
    async with publishing(sent) as publisher:
        publisher.tell(event(0))
        await anyio.wait_all_tasks_blocked()
        assert sent.percentages == [0]
        for percentage in range(1, 100):
            publisher.tell(event(percentage))
            await anyio.lowlevel.checkpoint()

    assert sent.percentages == [0, 99]


async def test_events_are_at_least_a_window_apart() -> None:
    times: list[float] = []

    async def note(event: InstallProgress) -> None:
        times.append(anyio.current_time())

    async with publishing(note) as publisher:
        while len(times) < 3:
            publisher.tell(event(1))
            await anyio.lowlevel.checkpoint()

    assert all(after - before >= limits.PROGRESS_EVERY_S for before, after in pairwise(times[:3]))


async def test_last_event_is_published_when_the_work_fails() -> None:
    """Row A029."""
    sent = Sent()

    async def fail() -> None:
        async with publishing(sent) as publisher:
            publisher.tell(event(10))
            await anyio.wait_all_tasks_blocked()
            publisher.tell(event(37))
            raise Conflict("no")

    with pytest.raises(Conflict):
        await fail()

    assert sent.percentages == [10, 37]


async def test_last_event_is_published_when_the_work_is_cancelled() -> None:
    sent = Sent()
    with anyio.CancelScope() as scope:
        async with publishing(sent) as publisher:
            publisher.tell(event(37))
            scope.cancel()
            await anyio.sleep_forever()

    assert sent.percentages == [37]


async def test_last_event_reaches_a_bus_that_takes_its_time_though_the_work_is_cancelled() -> None:
    sent = Sent()

    async def send(event: InstallProgress) -> None:
        await anyio.lowlevel.checkpoint()
        await sent(event)

    with anyio.CancelScope() as scope:
        async with publishing(send) as publisher:
            publisher.tell(event(37))
            scope.cancel()
            await anyio.sleep_forever()

    assert sent.percentages == [37]


async def test_flush_twice_publishes_once() -> None:
    """Row A030."""
    sent = Sent()
    publisher = Publisher(sent)
    publisher.tell(event(1))
    await publisher.flush()
    await publisher.flush()

    assert sent.percentages == [1]


async def test_slow_bus_does_not_stall_the_work() -> None:
    """Row A031."""
    stuck = anyio.Event()
    sent = Sent()

    async def slowly(event: InstallProgress) -> None:
        await stuck.wait()
        await sent(event)

    async with publishing(slowly) as publisher:
        publisher.tell(event(0))
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(10):
            for percentage in range(1, 1000):
                publisher.tell(event(percentage))
                await anyio.lowlevel.checkpoint()
        stuck.set()

    assert sent.percentages[-1] == 999


async def test_bus_that_is_down_costs_the_event_and_nothing_else() -> None:
    asked = []

    async def refuse(event: InstallProgress) -> None:
        asked.append(event)
        raise BusUnusable("down")

    async with publishing(refuse) as publisher:
        publisher.tell(event(1))

    assert asked == [event(1)]
