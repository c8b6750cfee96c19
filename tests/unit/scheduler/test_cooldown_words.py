"""How long a model whose replicas could not be had is left alone, in words."""

from datetime import timedelta

import pytest

from remuda.scheduler.scheduling import Cooldown, cooldown_in_words
from tests.support.nodes import NOON


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (timedelta(milliseconds=1), "tried again in 1s: no room"),
        (timedelta(milliseconds=1400), "tried again in 2s: no room"),
        (timedelta(seconds=90), "tried again in 90s: no room"),
        (timedelta(), ""),
        (timedelta(seconds=-1), ""),
    ],
)
def test_what_is_left_is_never_nothing(left: timedelta, told: str) -> None:
    assert cooldown_in_words(Cooldown(1, NOON + left, "fleet", "no room"), NOON) == told
