"""Registries are asked now and then; what follows from it is told from what nodes have now."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.core.errors import StoreUnusable
from remuda.core.ids import FrontendId
from remuda.fleet.verdicts import ObservedNode
from remuda.gallery.model import Reading
from remuda.ops.ports import Build, Pin
from remuda.ops.upgrade_check import EVERY, FIRST, CheckedImage, UpgradeCheck, with_news
from remuda.ops.upgrades import NOT_ASKED, BadVersion, BadVersions, ImageStatus
from tests.support.clocks import HostClock
from tests.support.memory_bus import MemoryBroker
from tests.support.virtual_loop import run_virtually
from tests.support.virtual_ops import connected, time_passes
from tests.support.waiting import wait_until
from tests.unit.ops.fleet import NEW, OLD, READINGS, a_node, artifact

pytestmark = pytest.mark.anyio
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SOON = timedelta(milliseconds=10)


class Around:
    """A fleet of one node, and a registry."""

    def __init__(self) -> None:
        self.digest = OLD
        self.available = NEW
        self.asked: list[str] = []
        self.looks = 0
        self.afresh = 0
        self.trouble = ""
        self.broken = False
        self.bad: BadVersions = {}

    async def look(self, *, afresh: bool = False) -> tuple[Sequence[ObservedNode], Sequence[Reading]]:
        self.looks += 1
        self.afresh += afresh
        if self.broken:
            raise StoreUnusable("the database does not answer")
        return [a_node("one", artifact("lone", self.digest))], READINGS

    async def bad_versions(self) -> BadVersions:
        return self.bad

    async def pin(self, build: Build) -> Pin:
        self.asked.append(build.uri)
        return Pin(self.available, trouble=self.trouble)


@asynccontextmanager
async def checking(around: Around, first: timedelta, every: timedelta) -> AsyncIterator[UpgradeCheck]:
    check = UpgradeCheck(
        around.look, around, SystemClock(), bad_versions=around.bad_versions, first=first, every=every
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(check.run)
        yield check
        tasks.cancel_scope.cancel()


def test_the_first_look_comes_soon_and_others_are_rare() -> None:
    assert (timedelta(seconds=10), timedelta(hours=6)) == (FIRST, EVERY)


async def test_registries_are_asked_by_itself_and_again() -> None:
    around = Around()
    async with checking(around, SOON, SOON) as check:
        await wait_until(lambda: len(around.asked) >= 3)
        assert (await check.current()).upgrades.keys() == {"lone"}


async def test_what_has_been_upgraded_is_gone_from_the_list_without_asking_again() -> None:
    around = Around()
    check = UpgradeCheck(around.look, around, SystemClock(), bad_versions=around.bad_versions)
    assert (await check.check()).upgrades["lone"].available_digest == NEW
    around.digest = NEW
    assert (await check.current()).upgrades == {}
    assert len(around.asked) == 1


async def test_a_registry_that_does_not_answer_takes_nothing_back() -> None:
    around = Around()
    check = UpgradeCheck(around.look, around, SystemClock(), bad_versions=around.bad_versions)
    await check.check()
    around.available, around.trouble = "", "cannot be reached"
    checked = await check.check()
    assert checked.upgrades.keys() == {"lone"}
    assert [(one.source, one.reason) for one in checked.unchecked] == [
        ("registry registry.example", "cannot be reached")
    ]


async def test_galleries_are_read_afresh_for_a_check_alone() -> None:
    around = Around()
    check = UpgradeCheck(around.look, around, SystemClock(), bad_versions=around.bad_versions)
    assert [one.reason for one in (await check.current()).unchecked] == [NOT_ASKED]
    assert around.afresh == 0
    assert (await check.check()).unchecked == ()
    assert around.afresh == 1


async def test_a_look_that_fails_is_followed_by_another() -> None:
    around = Around()
    around.broken = True
    async with checking(around, SOON, SOON) as check:
        await wait_until(lambda: around.looks >= 2)
        around.broken = False
        await wait_until(lambda: bool(around.asked))
        assert (await check.current()).upgrades.keys() == {"lone"}


async def test_it_is_told_when_each_registry_was_asked() -> None:
    around = Around()
    check = UpgradeCheck(around.look, around, SystemClock(), bad_versions=around.bad_versions)
    assert (await check.current()).sources == (), "nobody was asked"
    began = SystemClock().now()
    await check.check()
    [source] = [one for one in (await check.current()).sources if one.source.startswith("registry")]
    assert (source.source, source.backends) == ("registry registry.example", ("lone",))
    assert began <= source.at <= SystemClock().now()
    around.available, around.trouble = "", "cannot be reached"
    failed = await check.check()
    assert not [one for one in failed.sources if one.source.startswith("registry")]
    assert [one.at for one in failed.unchecked] == [source.at], "when it last answered"


async def test_a_version_that_failed_to_start_is_not_offered() -> None:
    around = Around()
    check = UpgradeCheck(around.look, around, SystemClock(), bad_versions=around.bad_versions)
    around.bad = {NEW: BadVersion(("lone",), NEW, "", "attic", SystemClock().now(), "exit code 1")}
    checked = await check.check()
    assert (dict(checked.upgrades), [one.backend for one in checked.withheld]) == ({}, ["lone"])


def test_what_another_frontend_was_told_last_counts() -> None:
    early, late = NOON, NOON + timedelta(minutes=1)
    known = {"a": ImageStatus(OLD, at=early), "b": ImageStatus(OLD, at=late)}
    told = (
        CheckedImage(uri="a", digest=NEW, at=late),
        CheckedImage(uri="b", digest=NEW, at=early),
        CheckedImage(uri="c", trouble="refused"),
    )
    assert with_news(known, told) == {
        "a": ImageStatus(NEW, at=late),
        "b": ImageStatus(OLD, at=late),
        "c": ImageStatus(trouble="refused"),
    }
    assert with_news(known, (CheckedImage(uri="a", trouble="refused"),)) == known


def test_a_check_on_one_frontend_is_known_to_the_other_with_its_age() -> None:
    async def main() -> None:
        around, clock = Around(), HostClock()
        broker = MemoryBroker(clock)
        async with (
            connected(broker, clock, "one") as first,
            connected(broker, clock, "two") as second,
            anyio.create_task_group() as tasks,
        ):
            here, there = (
                UpgradeCheck(
                    around.look,
                    around,
                    clock,
                    bad_versions=around.bad_versions,
                    bus=bus,
                    first=EVERY,
                    frontend=FrontendId(name),
                )
                for bus, name in ((first, "one"), (second, "two"))
            )
            for check in (here, there):
                await tasks.start(check.run)
            await time_passes(5)
            assert [one.reason for one in (await here.current()).unchecked] == [NOT_ASKED]
            asked = await there.check()
            await time_passes(5)
            known = await here.current()
            assert (known.unchecked, known.sources) == ((), asked.sources)
            assert known.upgrades["lone"].available_digest == NEW
            tasks.cancel_scope.cancel()

    run_virtually(main)
