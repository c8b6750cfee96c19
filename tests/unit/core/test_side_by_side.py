"""Work that is done at once, and ends together."""

import anyio
import pytest

from remuda.core.errors import NotFound
from remuda.core.tasks import side_by_side

pytestmark = pytest.mark.anyio


async def test_all_are_under_way_at_once() -> None:
    begun: set[int] = set()
    everyone = anyio.Event()

    async def work(number: int) -> None:
        begun.add(number)
        if len(begun) == 3:
            everyone.set()
        await everyone.wait()

    await side_by_side(3, work)
    assert begun == {0, 1, 2}


async def test_the_first_that_fails_ends_the_others_and_is_raised() -> None:
    ended: set[int] = set()

    async def work(number: int) -> None:
        if number == 1:
            raise NotFound("there is none")
        try:
            await anyio.sleep_forever()
        finally:
            ended.add(number)

    with pytest.raises(NotFound, match="there is none"):
        await side_by_side(3, work)
    assert 0 in ended, "it had begun"
