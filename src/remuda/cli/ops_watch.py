"""Watching operations: as live bars on a terminal, as lines elsewhere, as lines of JSON for programs."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Event, Lock, Thread
from typing import IO, Final, Protocol, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from remuda.cli.commands import connect
from remuda.cli.following import EventStream, Lost, StreamTimeouts
from remuda.cli.invocation import ClientOptions
from remuda.cli.ops_state import AT_WORK, Picture, by_frontends, short_id, steps_of, title
from remuda.cli.ops_tables import (
    StepPlace,
    amount,
    measured,
    note,
    percentage,
    progress_table,
    retrying,
    step_word,
)
from remuda.cli.options import ask_for
from remuda.cli.output import one_line, raise_if_reader_gone
from remuda.core.clock import Clock, SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.errors import PeerFailed, Rejected
from remuda.core.sse import SseEvent
from remuda.gateway.attention import on_node
from remuda.wire.operations import OpView, StepView

M = TypeVar("M")

_QUIET_S: Final = 16.0  # A frontend that has nothing to tell says so every 2 s, older ones every 5 or 15 s.
_SILENT_S: Final = 6.0  # After which the user learns that the frontend has gone silent.
_LOOK_EVERY_S: Final = 1.0
_STALLED_S: Final = 5.0
_GRACE_S: Final = 5.0
_LINE_EVERY_PERCENT: Final = 10
_ALL_TOLD: Final = "ready"  # The event after all that was there to tell.
_IDLE: Final = "no operation is running; waiting for one, Ctrl-C to stop"
_LINES_KEPT: Final = 3  # Of the terminal, for what stands around the bars.


class Display(Protocol):
    def show(self, picture: Picture, event: SseEvent) -> None: ...

    def heard(self) -> None:
        """The frontend is there, and has nothing new to tell."""
        ...

    def lost(self, lost: Lost) -> None: ...


def follow(
    options: ClientOptions, ops: Collection[str] | None, within: timedelta | None, display: Display
) -> Iterator[Picture]:
    """The picture of these operations, or of all, after each change; shown before it is given. It ends when
    the time is over."""
    if options.api_key == "-":
        options = replace(options, api_key=ask_for("API key"))

    @contextmanager
    def open_after(place: str, stay_s: float) -> Iterator[Iterator[bytes]]:
        # Found anew each time: a frontend that was restarted on this machine has another key.
        with connect(options) as client:
            path = ("api", "ops", *(ops if ops is not None and len(ops) == 1 else ()), "events")
            query, headers = {"wait_s": f"{stay_s:.3f}"}, {"Last-Event-ID": place} if place else {}
            quiet_s = min(_QUIET_S, stay_s + _GRACE_S)
            with client.stream(*path, query=query, headers=headers, quiet_s=quiet_s) as chunks:
                yield _noticed(chunks, display)

    clock, picture = SystemClock(), Picture(only=None if ops is None else frozenset(ops))
    stream = EventStream(open_after, clock, SystemEntropy(), Event().wait)
    until_s = None if within is None else clock.monotonic() + within.total_seconds()
    for event in stream.follow(StreamTimeouts(until_s)):
        if isinstance(event, Lost):
            display.lost(event)
            continue
        before, picture = picture, _after(picture, event)
        if picture is not before or event.name == _ALL_TOLD:
            display.show(picture, event)
        if picture is not before:
            yield picture


def _noticed(chunks: Iterator[bytes], display: Display) -> Iterator[bytes]:
    for chunk in chunks:
        display.heard()
        yield chunk


def _after(picture: Picture, event: SseEvent) -> Picture:
    try:
        return picture.after(event)
    except Rejected as error:
        raise PeerFailed(
            f"the frontend sent an event that this version does not understand: {error.message}"
        ) from error


@contextmanager
def displaying(
    *, as_json: bool, watch: bool, file: IO[str], outcome_follows: bool = False, all_ops: bool = False
) -> Iterator[Display]:
    """What fits: programs get a line per change if they watch, and nothing otherwise. `outcome_follows`:
    each node's outcome is printed at the end instead. `all_ops`: every operation is shown, so each line
    names its own."""
    if as_json:
        yield JsonLines(file) if watch else Silent()
    elif outcome_follows:
        with _live(file, all_ops=all_ops, outcome_follows=True) as display:
            yield WithoutOutcomes(display)
    else:
        with _live(file, all_ops=all_ops) as display:
            yield display


@contextmanager
def _live(file: IO[str], *, all_ops: bool, outcome_follows: bool = False) -> Iterator[Display]:
    """Bars on a terminal, lines elsewhere."""
    if file.isatty():
        console = Console(file=file, highlight=False, markup=False, emoji=False)
        bars = OperationBars(console, SystemClock(), all_ops=all_ops)
        with Live(get_renderable=bars.render, console=bars.console, refresh_per_second=8):
            yield bars
    else:
        shown = OperationLines(file, SystemClock(), all_ops=all_ops, outcome_follows=outcome_follows)
        with _looked_at(shown) as lines:
            yield lines


@contextmanager
def _looked_at(lines: "OperationLines") -> Iterator["OperationLines"]:
    """Watches from another thread: the one that reads the stream is blocked while nothing arrives."""
    over = Event()

    def look() -> None:
        while not over.wait(_LOOK_EVERY_S):
            lines.look()

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        over.set()
        thread.join()


class WithoutOutcomes:
    """Shows how far each node is, and leaves out how it ended."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def show(self, picture: Picture, event: SseEvent) -> None:
        self._display.show(picture.without_outcomes(), event)

    def heard(self) -> None:
        self._display.heard()

    def lost(self, lost: Lost) -> None:
        self._display.lost(lost)


class Silent:
    def show(self, picture: Picture, event: SseEvent) -> None:
        pass

    def heard(self) -> None:
        pass

    def lost(self, lost: Lost) -> None:
        pass


class JsonLines:
    """Each change as it was received."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def show(self, picture: Picture, event: SseEvent) -> None:
        if event.name in ("op", "progress"):
            line = {"event": event.name, "data": json.loads(event.data)}
            print(json.dumps(line), file=self._file, flush=True)

    def heard(self) -> None:
        raise_if_reader_gone(self._file)

    def lost(self, lost: Lost) -> None:
        line = {"event": "lost", "data": {"message": lost.error.message, "again_in_s": lost.again_in_s}}
        print(json.dumps(line), file=self._file, flush=True)


@dataclass(frozen=True, slots=True)
class _Wait:
    """After which attempt, and for how long from when the frontend said so."""

    attempt: int
    retry_in_s: float


class OperationBars:
    """Operations that had finished before the start are not shown. Bars that nothing is heard about say so,
    and for how long: the line to the frontend may be dead, or a node's."""

    def __init__(self, console: Console, clock: Clock, *, all_ops: bool = False) -> None:
        self.console = console
        self._clock = clock
        self._all_ops = all_ops
        self._idle = False  # All was printed, and nothing runs.
        self._ops: tuple[OpView, ...] = ()
        self._seen: set[str] = set()
        self._trouble = ""
        self._heard_s = clock.monotonic()
        self._moved: dict[StepPlace, tuple[object, float]] = {}  # How far each node was, and since when.
        self._waits: dict[
            StepPlace, tuple[_Wait, float]
        ] = {}  # For which attempt each waits, and since when.

    def show(self, picture: Picture, event: SseEvent) -> None:
        self._seen |= {op.id for op in picture.ops.values() if op.finished_at is None}
        self._ops = tuple(op for op in picture.ops.values() if op.id in self._seen)
        self._moved = {place: self._since(self._moved, place, mark) for place, mark in _marks(self._ops)}
        self._waits = {place: self._since(self._waits, place, wait) for place, wait in _waits(self._ops)}
        all_told = event.name == _ALL_TOLD or self._idle or bool(self._ops)
        self._idle = self._all_ops and all_told and not _any_unfinished(picture)
        self.heard()

    def heard(self) -> None:
        self._trouble, self._heard_s = "", self._clock.monotonic()

    def lost(self, lost: Lost) -> None:
        self._trouble = one_line(f"{lost.error.message}; trying again")

    def render(self) -> RenderableType:
        """Called by another thread: it takes what there is once."""
        ops, moved, waits, now_s = self._ops, self._moved, self._waits, self._clock.monotonic()
        silent_s = now_s - self._heard_s
        trouble = self._trouble
        if not trouble and silent_s >= _SILENT_S:
            trouble = (
                f"nothing heard from the frontend for {silent_s:.0f} s; what is shown may be out of date"
            )
        stalled = {
            place: int(now_s - since_s)
            for place, (_, since_s) in moved.items()
            if not trouble and now_s - since_s >= _STALLED_S
        }
        idle = self._idle and not trouble
        rows = max(self.console.height - _LINES_KEPT - bool(trouble or idle), 1)
        retry_in_s = {place: wait.retry_in_s - (now_s - since_s) for place, (wait, since_s) in waits.items()}
        table = progress_table(ops, rows, self.console.width, stalled, retry_in_s, all_ops=self._all_ops)
        if idle:
            return Group(table, Text(_IDLE)) if ops else Text(_IDLE)
        return Group(Text(trouble, style="yellow"), table) if trouble else table

    def _since(
        self, known: Mapping[StepPlace, tuple[M, float]], place: StepPlace, mark: M
    ) -> tuple[M, float]:
        """The mark, and since when it has been the same."""
        before = known.get(place)
        return before if before is not None and before[0] == mark else (mark, self._clock.monotonic())


def _any_unfinished(picture: Picture) -> bool:
    return any(op.finished_at is None for op in picture.ops.values())


def _waits(ops: Sequence[OpView]) -> Iterator[tuple[StepPlace, _Wait]]:
    for op in ops:
        for step in steps_of(op):
            if step.retry_in_s is not None:
                yield (op.id, step.node_id), _Wait(step.attempt, step.retry_in_s)


def _marks(ops: Sequence[OpView]) -> Iterator[tuple[StepPlace, object]]:
    """How far each node is that moves bytes. A rate that sinks is no progress."""
    for op in ops:
        for step in steps_of(op):
            if (progress := step.progress) is not None and step.state in AT_WORK and progress.total_bytes:
                yield (
                    (op.id, step.node_id),
                    (progress.phase, progress.current_bytes, progress.percentage),
                )


class OperationLines:
    """One for each change of state or phase of a node, and each tenth of its way. The reason of a failure is
    told in full once, however often it is met again. `outcome_follows`: how an operation ended that concerns
    no node is printed elsewhere."""

    def __init__(
        self, file: IO[str], clock: Clock, *, all_ops: bool = False, outcome_follows: bool = False
    ) -> None:
        self._file = file
        self._clock = clock
        self._all_ops = all_ops
        self._outcome_follows = outcome_follows
        self._idle_told = False
        self._ops: Mapping[str, OpView] = {}
        self._told: dict[StepPlace, tuple[object, ...]] = {}
        self._failures: dict[StepPlace, str] = {}
        self._turn = Lock()  # `look` is called by another thread.
        self._down = False
        self._heard_s = clock.monotonic()

    def show(self, picture: Picture, event: SseEvent) -> None:
        self.heard()
        for op in picture.ops.values():
            if op is not self._ops.get(op.id):
                self._tell(op)
        self._ops = picture.ops
        if event.name == _ALL_TOLD and self._all_ops and not self._idle_told:
            self._idle_told = True
            if not _any_unfinished(picture):
                self._print(_IDLE)

    def heard(self) -> None:
        raise_if_reader_gone(self._file)
        with self._turn:
            self._heard_s = self._clock.monotonic()
            if self._down:
                self._print("connected to the frontend again")
                self._down = False

    def lost(self, lost: Lost) -> None:
        self._is_down(f"{lost.error.message}; trying again")

    def look(self) -> None:
        """Say it, if nothing was heard for too long."""
        silent_s = self._clock.monotonic() - self._heard_s
        if silent_s >= _SILENT_S:
            self._is_down(f"nothing heard from the frontend for {silent_s:.0f} s")

    def _is_down(self, words: str) -> None:
        with self._turn:
            if not self._down:
                self._print(words)
                self._down = True

    def _tell(self, op: OpView) -> None:
        known = any(id == op.id for id, _ in self._told)
        if op.finished_at is not None and not known:
            return  # It had finished before the start.
        if op.finished_at is not None and self._outcome_follows and by_frontends(op):
            return
        for step in steps_of(op):
            mark, key = _mark(step), (op.id, step.node_id)
            if self._told.get(key) != mark:
                self._told[key] = mark
                line = self._detail(key, step)
                id = f"{short_id(op.id)}: " if self._all_ops else ""
                where = f"{id}{title(op)}{on_node(step)}"
                self._print(f"{where}: {_told(step)}{f': {line}' if line else ''}")

    def _detail(self, place: StepPlace, step: StepView) -> str:
        if step.state in AT_WORK:  # What failed before was printed then.
            return step.reason
        failure = "" if step.problem is None else step.problem.message
        known = self._failures.get(place)
        self._failures[place] = failure
        again = retrying(step)
        if again and known == failure:
            return f"attempt {step.attempt} failed for the same reason; {again}"
        return note(step)

    def _print(self, text: str) -> None:
        print(one_line(text), file=self._file, flush=True)


def _mark(step: StepView) -> tuple[object, ...]:
    progress = step.progress if step.state in AT_WORK else None
    tenth = int(percentage(progress)) // _LINE_EVERY_PERCENT if progress else 0
    failure = "" if step.problem is None or step.state in AT_WORK else step.problem.message
    return step.state, step.attempt, step_word(step), tenth, step.reason, failure


def _told(step: StepView) -> str:
    parts = [step_word(step)]
    if step.progress is not None and step.state in AT_WORK and measured(step):
        parts += [f"{percentage(step.progress):.0f}%", *filter(None, [amount(step.progress)])]
    return ", ".join(parts)
