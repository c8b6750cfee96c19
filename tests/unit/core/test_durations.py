"""Go's durations, both ways."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.durations import parse, render


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("1m30s", 90), ("500ms", 0.5), ("24h", 86400), ("1.5h", 5400), ("0s", 0)],
)
def test_go_forms_are_read(text: str, seconds: float) -> None:
    assert parse(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "x", "10", "s", "-5s", "10 s", "10s!", "1d", "99999999999999h", "٣s"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration"):
        parse(text)


@given(st.timedeltas(timedelta(), timedelta(days=3650)))
def test_what_is_rendered_is_read_back(span: timedelta) -> None:
    assert abs(parse(render(span)) - span) <= timedelta(microseconds=1)
