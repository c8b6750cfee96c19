"""Everything at once to one backend: processes come and go by the dozen, and nothing stays."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import anyio
import anyio.to_thread
import psutil
import pytest

from remuda.core.entropy import SeededEntropy
from remuda.core.errors import Misconfigured
from remuda.host.descendants import Seen, look
from remuda.host.ports import listen
from tests.integration.running.light_backend import write_light_backend
from tests.integration.running.rig import HOST, Rig, Yard, alive, working
from tests.support.nats_servers import PlainServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

CALLERS = 4
KEYS = (("a", 0), ("a", 1), ("b", 0))
LOOK_EVERY_S = 0.03
# What somebody is told whose wish was crossed by another's. Anything else is a fault.
CROSSED = (
    "backend not found: light",
    "it was stopped while starting",
    "is already stopping",
    "mismatch",
    "did not free its memory before it was ended",
)
Lives = dict[str, tuple[str, str]]  # Key and address of every instance that was answered with.


@dataclass
class Watch:
    """Looks at the system's own table of processes, all the time."""

    owner: str
    together: set[frozenset[str]] = field(default_factory=set)  # Instances that were alive at one moment.
    looks: int = 0

    async def run(self) -> None:
        while True:
            await anyio.to_thread.run_sync(self._look)
            await anyio.sleep(LOOK_EVERY_S)

    def _look(self) -> None:
        """Twice: one that was there both times was there in between, when all others had been seen."""
        twice = [seen for seen in alive(self.owner) if _still_lives(seen)]
        instances = {seen.mark.instance for seen in twice if seen.mark}
        self.together |= {frozenset(pair) for pair in combinations(sorted(instances), 2)}
        self.looks += 1


def _still_lives(seen: Seen) -> bool:
    now = look(seen.pid)
    return now is not None and now.identity == seen.identity and not now.zombie


async def one_command(rig: Rig, entropy: SeededEntropy, lives: Lives) -> Any:
    """Installs above all: without processes there is nothing to disturb."""
    model, index = KEYS[int(entropy.fraction() * len(KEYS))]
    chance = entropy.fraction()
    if chance < 0.6:
        reply = await rig.install("light", model_id=model, replica_index=index)
        if reply["success"]:
            lives[reply["instance"]] = (f"{model}#{index}", reply["address"])
        return reply
    if chance < 0.7:
        return await rig.ask("backend.upgrade", backend="light")
    if chance < 0.75:
        return await rig.ask("backend.delete", backend="light")
    if chance < 0.9:
        known = [address for key, address in lives.values() if key == f"{model}#{index}"]
        target = {"process_key": f"{model}#{index}", "expected_address": known[-1] if known else ""}
        return await rig.ask("model.stop", model_name=model, **target)
    await rig.tell("backend.stop", backend="light", force=chance < 0.95)
    return {}


def faults(replies: list[Any]) -> Counter[str]:
    errors = (reply.get("error", "") for reply in replies)
    return Counter(error for error in errors if error and not any(word in error for word in CROSSED))


def open_ports(rig: Rig) -> Iterator[int]:
    """Those of the worker's range on which somebody listens."""
    base = int(str(rig.frontend.node("gpu-1").registrations[0]["address"]).rpartition(":")[2])
    for port in range(base, base + rig.yard.ports_count):
        try:
            listen(HOST, port).close()
        except Misconfigured:
            yield port


@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.long)])
async def test_lives_under_concurrent_commands_leave_nothing_and_never_share_a_key(
    yard: Yard, nats: PlainServer, count: int
) -> None:
    yard.offer(light=write_light_backend(yard.folder / "source" / "light"))
    yard.ports_count = 99  # A port rests after use.
    lives: Lives = {}
    replies: list[Any] = []
    async with working(yard, nats) as rig, anyio.create_task_group() as watching:
        await rig.installed("light", model_id="first")  # What is opened once stays open: threads, logs.
        await rig.tell("backend.stop")
        await wait_until(lambda: not rig.room.report().replicas)
        # Those of other tests may end meanwhile.
        files, children = len(os.listdir("/dev/fd")), set(psutil.Process().children())
        watch = Watch(yard.owner)
        watching.start_soon(watch.run)

        async def call(seed: int) -> None:
            entropy = SeededEntropy(seed)
            while len(lives) < count:
                replies.append(await one_command(rig, entropy, lives))

        with anyio.fail_after(100):
            async with anyio.create_task_group() as callers:
                for seed in range(CALLERS):
                    callers.start_soon(call, seed)
        await rig.ask("backend.delete", backend="light")
        await rig.tell("backend.stop")
        await wait_until(lambda: not rig.room.report().replicas and not yard.alive())
        watching.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await wait_until(lambda: set(psutil.Process().children()) <= children)
            await wait_until(lambda: len(os.listdir("/dev/fd")) <= files, what=f"{files} open files again")

        assert faults(replies) == Counter()
        assert rig.room.report().work == ()
        assert list(open_ports(rig)) == []
        yard.assert_tidy()
        assert not yard.backend("light").exists()

    keys = {
        row.instance: f"{row.model_id}#{row.replica_index}"
        for account in rig.accounts
        for row in account.replicas
        if row.instance
    }
    assert len(lives) >= count
    assert watch.looks > count
    assert watch.together, "processes of different keys ran side by side"
    shared = {pair for pair in watch.together if len({keys[instance] for instance in pair}) == 1}
    assert shared == set()
