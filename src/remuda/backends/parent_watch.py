"""Ends a backend whose parent is gone: a worker that was killed must not leave engines behind.

A thread of its own, for the event loop may be what hangs.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta

from remuda.backends import limits
from remuda.core import durations

SWITCH_VARIABLE = "LOCALAI_BACKEND_PARENT_WATCH"
INTERVAL_VARIABLE = "LOCALAI_BACKEND_PARENT_WATCH_INTERVAL"

log = logging.getLogger(__name__)


def watch_parent(
    environ: Mapping[str, str], orphaned: Callable[[], None], *, getppid: Callable[[], int] = os.getppid
) -> threading.Thread | None:
    """Call `orphaned` once, from a thread, when this process gets another parent.

    None when there is nothing to watch: it was switched off, or the parent is the machine's first process.
    """
    parent = getppid()
    if parent <= 1 or _switched_off(environ):
        return None
    every = watch_interval(environ)
    thread = threading.Thread(
        target=_watch, args=(parent, every, orphaned, getppid), name="parent-watch", daemon=True
    )
    thread.start()
    return thread


def watch_interval(environ: Mapping[str, str]) -> timedelta:
    """How often to look: a duration as Go writes them, or plain seconds."""
    usual = timedelta(seconds=limits.PARENT_WATCH_EVERY_S)
    text = environ.get(INTERVAL_VARIABLE, "").strip()
    if not text:
        return usual
    try:
        interval = _span(text)
    except (ValueError, OverflowError):
        interval = timedelta(0)
    if interval <= timedelta(0):
        log.warning("parent_watch_interval_ignored value=%r accepted=%r", text, durations.ACCEPTED)
        return usual
    return interval


def _span(text: str) -> timedelta:
    try:
        return timedelta(seconds=float(text))
    except ValueError:
        return durations.parse(text)


def _switched_off(environ: Mapping[str, str]) -> bool:
    return environ.get(SWITCH_VARIABLE, "").strip().lower() in ("false", "0", "no", "off")


def _watch(parent: int, every: timedelta, orphaned: Callable[[], None], getppid: Callable[[], int]) -> None:
    pause = threading.Event()  # Never set: waiting for it is how a thread lets time pass.
    while getppid() == parent:
        pause.wait(every.total_seconds())
    log.warning("parent_gone pid=%d", parent)
    orphaned()
