"""What must hold when the faults are over, whatever they were."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import httpx
import psycopg

from tests.integration.chaos.corral import BACKENDS, FINAL, Corral, Machine
from tests.integration.chaos.wares import build, light
from tests.support.processes import Frontend, Json, Process
from tests.support.waiting import wait_until_blocking

OVER_S: Final = 120.0
_TOLD_S: Final = 20.0
_FAILURES_MAX: Final = 10


class Verdict:
    """`all` of it raises AssertionError at the first thing that must not be, with what there is to see."""

    def __init__(self, corral: Corral) -> None:
        self._corral = corral
        self._frontends = [corral.frontend_of(machine) for machine in corral.frontends]

    def all(self) -> None:
        self.settled_after_s = self._everything_ends()
        self.operations = list(self._operations(self._frontends[0]))
        self._same_picture()
        self._disks_are_as_shown()
        self._every_row_has_an_exit()
        self._nothing_began_twice()
        self._newest_wish_holds()
        self._no_defects()
        self._what_failed_can_be_retried()
        self._it_still_works()

    def states(self) -> Counter[str]:
        return Counter(f"{op['kind']} {step['state']}" for op in self.operations for step in op["steps"])

    def attempts_max(self) -> int:
        return max((step["attempt"] for op in self.operations for step in op["steps"]), default=0)

    def _everything_ends(self) -> float:
        began_s = time.monotonic()

        def live() -> list[Json]:
            found: list[Json] = self._frontends[0].get("/api/ops?state=live")["operations"]
            return found

        def over() -> bool:
            with suppress(httpx.HTTPError):
                return not live()
            return False

        try:
            wait_until_blocking(over, within=OVER_S)
        except AssertionError:
            stuck = [self._corral.operation(op["id"]) for op in live()]
            raise AssertionError(f"not over {OVER_S} s after the last fault: {stuck}") from None
        return time.monotonic() - began_s

    def _operations(self, frontend: Frontend) -> Iterator[Json]:
        """Oldest first."""
        listed = frontend.get("/api/ops?dismissed=true&limit=1000")["operations"]
        for op in sorted(listed, key=lambda op: str(op["asked_at"])):
            yield frontend.get(f"/api/ops/{op['id']}")

    def _same_picture(self) -> None:
        assert list(self._operations(self._frontends[1])) == self.operations, "frontends differ"

    def _disks_are_as_shown(self) -> None:
        def differences() -> list[object]:
            return [
                (machine.name, disk, shown)
                for machine in self._corral.workers
                for frontend in self._frontends
                if (disk := self._corral.on_disk(machine)) != (shown := self._corral.shown(frontend, machine))
            ]

        try:
            wait_until_blocking(lambda: not differences(), within=_TOLD_S)
        except AssertionError:
            raise AssertionError(f"what is shown is not what is there: {differences()}") from None

    def _every_row_has_an_exit(self) -> None:
        for op in self.operations:
            assert op["finished_at"], op
            for step in op["steps"]:
                assert step["state"] in FINAL, step
                assert step["state"] == "succeeded" or step["reason"], f"no reason is given: {step}"
                assert step["failures"] <= _FAILURES_MAX, step
                assert all(attempt.get("ended_at") for attempt in step.get("attempts", ())), step
        with psycopg.connect(self._corral.database) as database:
            for table, column in (
                ("operations", "finished_at"),
                ("steps", "ended_at"),
                ("attempts", "ended_at"),
            ):
                (count,) = database.execute(
                    f"SELECT count(*) FROM {table} WHERE {column} IS NULL"
                ).fetchone() or (0,)
                assert count == 0, f"{count} rows of {table} without an end"

    def _nothing_began_twice(self) -> None:
        """A wish said again is one operation; an attempt reaches a worker once, in any one life of it."""
        keys = Counter(op["idempotency_key"] for op in self.operations)
        assert max(keys.values(), default=1) == 1, f"one wish, several operations: {keys}"
        for machine, life in _lives(self._corral.workers):
            begun = Counter(
                (event["kind"], event["backend"], event["op"], event["attempt"])
                for event in life.events("work_begun")
                if event["op"]
            )
            twice = {work: count for work, count in begun.items() if count > 1}
            assert not twice, f"{machine.name} began the same attempt again: {twice}"

    def _newest_wish_holds(self) -> None:
        """Where the newest operation on a backend says that it succeeded, the disk agrees."""
        for machine in self._corral.workers:
            disk = self._corral.on_disk(machine)
            for backend in BACKENDS:
                newest = self._newest(machine.name, backend)
                if newest is None or newest[1]["state"] != "succeeded":
                    continue
                kind, step = newest
                there = disk.get(build(backend))
                assert (there is None) == (kind == "remove"), f"{machine.name} has {disk} after {kind} {step}"
                if kind == "upgrade" and step["pinned"]:
                    assert there == step["digest"], f"{machine.name} has {there} after {step}"

    def _newest(self, node: str, backend: str) -> tuple[str, Json] | None:
        found = [
            (op["kind"], step)
            for op in self.operations
            for step in op["steps"]
            if step["node_name"] == node and op["backend"] == backend and step["state"] != "skipped"
        ]
        return found[-1] if found else None

    def _no_defects(self) -> None:
        """Whatever happens is somebody's expected trouble: no log has a traceback."""
        for machine, life in _lives(self._corral.machines):
            broken = [line for line in life.log.splitlines() if "Traceback (most recent call last)" in line]
            assert not broken, f"{machine.name}: {broken[0]}"

    def _what_failed_can_be_retried(self) -> None:
        """It may fail again, but ends again."""
        failed = [op for op in self.operations if any(step["state"] == "failed" for step in op["steps"])]
        for op in failed:
            self._frontends[0].ask("POST", f"/api/ops/{op['id']}/retry", {}).raise_for_status()
        self._everything_ends()

    def _it_still_works(self) -> None:
        """Last wishes are granted everywhere, and leave nothing behind."""
        corral = self._corral
        for backend in BACKENDS:
            corral.wares.offer(backend, light(0))
        for kind, wanted in (("remove", set()), ("install", set(map(build, BACKENDS))), ("remove", set())):
            for op in [corral.ask(kind, backend) for backend in BACKENDS]:
                steps = corral.until_over(op)
                assert {step["state"] for step in steps.values()} == {"succeeded"}, steps
            assert all(set(corral.on_disk(machine)) == wanted for machine in corral.workers), kind
        left = corral.backend_processes
        wait_until_blocking(lambda: not left(), within=_TOLD_S, what="backends that ended")


def all_end(corral: Corral) -> None:
    """Told to stop, every worker and frontend does, and no process of theirs stays behind."""
    for machine in [*corral.workers, *corral.frontends]:
        assert machine.process.stop() == 0, f"{machine.name} did not end well:\n{machine.process.log[-2000:]}"
    wait_until_blocking(lambda: not corral.place.processes(), within=_TOLD_S, what="no process left behind")


def _lives(machines: Sequence[Machine]) -> list[tuple[Machine, Process]]:
    return [(machine, life) for machine in machines for life in machine.lives]
