"""When announcements are published, on a clock that jumps."""

from collections.abc import Mapping

import anyio

from remuda.core.broadcast import DebouncedBroadcast
from tests.support.virtual_loop import run_virtually


def published_at(
    *, sends_at: tuple[float, ...] = (), every_s: float | None = None, failures: int = 0, until_s: float
) -> Mapping[float, bool]:
    """The instants at which it published, and whether that succeeded."""
    seen: dict[float, bool] = {}

    async def main() -> None:
        start_s = anyio.current_time()

        async def publish() -> bool:
            seen[round(anyio.current_time() - start_s, 3)] = len(seen) >= failures
            return len(seen) > failures

        broadcast = DebouncedBroadcast(publish, gap_s=0.5, every_s=every_s, retry_s=2.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(broadcast.run)
            for at_s in sends_at:
                await anyio.sleep_until(start_s + at_s)
                broadcast.send()
            await anyio.sleep_until(start_s + until_s)
            tasks.cancel_scope.cancel()

    run_virtually(main)
    return seen


def test_nothing_is_published_until_something_changes() -> None:
    assert published_at(until_s=100) == {}


def test_changes_within_the_gap_are_published_in_one() -> None:
    assert list(published_at(sends_at=(1.0, 1.1, 1.2, 1.3, 4.0), until_s=100)) == [1.0, 1.5, 4.0]


def test_without_changes_it_is_published_at_the_start_and_now_and_then() -> None:
    assert list(published_at(every_s=10.0, until_s=25)) == [0.0, 10.5, 21.0]


def test_failed_regular_publication_is_tried_again_soon() -> None:
    seen = published_at(every_s=10.0, failures=2, until_s=15)
    assert seen == {0.0: False, 2.5: False, 5.0: True}


def test_failed_publication_of_a_change_is_left_to_the_next_change() -> None:
    assert published_at(sends_at=(1.0, 9.0), failures=1, until_s=100) == {1.0: False, 9.0: True}


def test_failed_publication_waits_no_longer_than_the_regular_one() -> None:
    assert list(published_at(every_s=1.0, failures=1, until_s=2)) == [0.0, 1.5]
