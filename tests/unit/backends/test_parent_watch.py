"""When a backend watches its parent, how often, and what it then notices."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from remuda.backends.serving import watch_interval, watch_parent

OFTEN = {"LOCALAI_BACKEND_PARENT_WATCH_INTERVAL": "1ms"}


def never() -> None:
    raise AssertionError("nobody is orphaned here")


def test_another_parent_is_noticed() -> None:
    parents: Iterator[int] = iter([100, 100, 100, 1])
    orphaned = threading.Event()

    watch_parent(OFTEN, orphaned.set, getppid=lambda: next(parents))

    assert orphaned.wait(5.0)


def test_a_subreaper_in_place_of_the_parent_is_noticed_too() -> None:
    parents: Iterator[int] = iter([100, 100, 77])
    orphaned = threading.Event()

    watch_parent(OFTEN, orphaned.set, getppid=lambda: next(parents))

    assert orphaned.wait(5.0)


@pytest.mark.parametrize("parent", [0, 1])
def test_a_first_process_is_not_watched(parent: int) -> None:
    assert watch_parent({}, never, getppid=lambda: parent) is None


@pytest.mark.parametrize("word", ["false", "0", "no", "off", "OFF", " False "])
def test_it_can_be_switched_off(word: str) -> None:
    assert watch_parent({"LOCALAI_BACKEND_PARENT_WATCH": word}, never, getppid=lambda: 100) is None


@pytest.mark.parametrize(("text", "seconds"), [("", 2), ("500ms", 0.5), ("1m", 60), ("3", 3), ("0.25", 0.25)])
def test_the_interval_is_a_go_duration_or_plain_seconds(text: str, seconds: float) -> None:
    read = watch_interval({"LOCALAI_BACKEND_PARENT_WATCH_INTERVAL": text})
    assert read == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", "1e300"])
def test_an_interval_that_makes_no_sense_is_the_usual_one(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    read = watch_interval({"LOCALAI_BACKEND_PARENT_WATCH_INTERVAL": text})
    assert read == timedelta(seconds=2)
    assert "parent_watch_interval_ignored" in caplog.text
