"""Galleries for callers in a hurry."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from remuda.core.errors import Invalid, Unavailable
from remuda.gallery.model import Reading
from remuda.gallery.sources import GalleryView
from tests.unit.ops.fleet import READINGS

pytestmark = pytest.mark.anyio


class Galleries:
    """Answers, or does not until it is let."""

    def __init__(self, *, slow: bool = False) -> None:
        self.reads = 0
        self.afresh = 0
        self.answers = anyio.Event()
        if not slow:
            self.answers.set()

    async def read(self, *, refresh: bool = False) -> tuple[Reading, ...]:
        self.reads += 1
        self.afresh += refresh
        await self.answers.wait()
        return READINGS


@asynccontextmanager
async def gallery_view(galleries: Galleries, given: Galleries | None = None) -> AsyncIterator[GalleryView]:
    made = GalleryView(galleries, lambda _: given or Galleries(), patience_s=0.05)
    async with anyio.create_task_group() as tasks:
        await tasks.start(made.run)
        yield made
        tasks.cancel_scope.cancel()


async def test_what_the_galleries_offer_is_handed_on() -> None:
    async with gallery_view(Galleries()) as made:
        assert await made.readings() == READINGS


async def test_slow_galleries_are_not_waited_for_where_an_earlier_reading_is_there() -> None:
    galleries = Galleries()
    async with gallery_view(galleries) as made:
        await made.readings()
        galleries.answers = anyio.Event()
        with anyio.fail_after(5):
            assert await made.readings() == READINGS


async def test_before_the_first_reading_slow_galleries_are_said_to_be_so_and_read_on() -> None:
    galleries = Galleries(slow=True)
    async with gallery_view(galleries) as made:
        with pytest.raises(Unavailable, match="being read"):
            await made.readings()
        galleries.answers.set()
        assert (await made.readings(), galleries.reads) == (READINGS, 1)


async def test_galleries_that_a_request_brings_are_read_in_place_of_the_usual_ones() -> None:
    usual, given = Galleries(), Galleries()
    async with gallery_view(usual, given) as made:
        await made.readings('[{"name": "theirs", "url": "https://example.org/index.yaml"}]')
    assert (usual.reads, given.reads) == (0, 1)


async def test_a_request_cannot_make_the_frontend_read_its_own_files() -> None:
    async with gallery_view(Galleries()) as made:
        with pytest.raises(Invalid, match="file on the frontend"):
            await made.readings('[{"name": "x", "url": "file:///etc/passwd"}]')


async def test_galleries_that_a_request_brings_may_not_keep_it_waiting() -> None:
    async with gallery_view(Galleries(), Galleries(slow=True)) as made:
        with pytest.raises(Unavailable, match="did not answer in time"):
            await made.readings('[{"name": "slow", "url": "https://example.org/index.yaml"}]')


async def test_galleries_are_asked_afresh_only_for_those_who_want_that() -> None:
    galleries = Galleries()
    async with gallery_view(galleries) as made:
        await made.readings()
        assert galleries.afresh == 0
        assert await made.readings(afresh=True) == READINGS
        assert galleries.afresh == 1


async def test_who_wants_to_know_afresh_is_told_when_galleries_do_not_answer() -> None:
    galleries = Galleries()
    async with gallery_view(galleries) as made:
        await made.readings()
        galleries.answers = anyio.Event()
        mine, shipped = await made.readings(afresh=True)
        assert (mine.trouble, shipped.trouble) == ("no answer within 0.05 s", "")
        assert mine.index == READINGS[0].index
