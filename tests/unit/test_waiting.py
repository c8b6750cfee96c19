import pytest

from tests.support.waiting import wait_until, wait_until_blocking

pytestmark = pytest.mark.anyio


async def test_wait_until_returns_the_first_true_answer() -> None:
    answers = iter([None, "", "here"])
    assert await wait_until(lambda: next(answers)) == "here"


async def test_wait_until_awaits_what_the_predicate_returns() -> None:
    answers = iter([0, 0, 7])

    async def ask() -> int:
        return next(answers)

    assert await wait_until(ask) == 7


async def test_wait_until_that_comes_too_late_says_what_it_saw() -> None:
    with pytest.raises(AssertionError, match="for a blue moon; the last answer was 0"):
        await wait_until(lambda: 0, within=0.0, what="a blue moon")


def test_blocking_wait_returns_the_first_true_answer() -> None:
    answers = iter([0, 3])
    assert wait_until_blocking(lambda: next(answers)) == 3
