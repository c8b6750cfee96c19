"""How a pull looks while it runs: one live bar per layer on a terminal, now and then a line elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from remuda.cli.output import one_line
from remuda.cli.render import span
from remuda.core.clock import Clock, SystemClock
from remuda.oci.fetch import FileProgress, Meter, Overall, PullPhase
from remuda.wire.sizes import install_size
from remuda.worker.depot.fetch_unpack import OnStep, ProgressStep, ignore_steps

_LINE_EVERY_PERCENT = 10
_DIGEST_CHARS = 12
_STALLED_S = 5.0
_WORDS = {
    PullPhase.RESOLVING: "resolving",
    PullPhase.DOWNLOADING: "downloading",
    PullPhase.EXTRACTING: "unpacking",
}


@contextmanager
def watching(name: str, *, quiet: bool) -> Iterator[OnStep]:
    """On standard error, so that the outcome has standard output to itself."""
    if quiet:
        yield ignore_steps
    elif sys.stderr.isatty():
        clock = SystemClock()
        with _bars(clock) as progress:
            yield PullBars(progress, clock).show
    else:
        yield PullLines(name).show


class PullBars:
    def __init__(self, progress: Progress, clock: Clock) -> None:
        self._progress = progress
        self._clock = clock
        self._tasks: dict[str, TaskID] = {}
        self._meters: dict[str, tuple[int, Meter]] = {}  # With the size that each is for.
        self._fetched: set[str] = set()
        self._moved: dict[str, tuple[int, float]] = {}  # How many bytes of each are here, and since when.

    def show(self, step: ProgressStep) -> None:
        """Layers are unpacked while they arrive; a bar shows one after the other."""
        file = step.file
        if file is None or (file.phase is PullPhase.EXTRACTING and file.file not in self._fetched):
            return
        if file.phase is PullPhase.DOWNLOADING and file.done_bytes >= file.total_bytes:
            self._fetched.add(file.file)
        if file.file not in self._tasks:
            self._tasks[file.file] = self._progress.add_task("", total=file.total_bytes)
        self._progress.update(
            self._tasks[file.file],
            description=f"{_short(file.file)} {_WORDS[file.phase]:<11}",
            completed=file.done_bytes,
            total=file.total_bytes,
            meter=self._measured(file),
            moved_s=self._since(file),
        )

    def _since(self, file: FileProgress) -> float:
        known = self._moved.get(file.file)
        if known is None or known[0] != file.done_bytes:
            known = self._moved[file.file] = file.done_bytes, self._clock.monotonic()
        return known[1]

    def _measured(self, file: FileProgress) -> Meter | None:
        """Only what travels is measured, and only from its first bytes on: a layer that is resumed has most
        of its bytes at once, which made nothing faster."""
        if file.phase is not PullPhase.DOWNLOADING or not file.done_bytes:
            return None
        total, meter = self._meters.get(file.file, (0, None))
        if meter is None or total != file.total_bytes:  # An archive's size is known late, or never.
            meter = Meter({file.file: file.total_bytes})
            self._meters[file.file] = file.total_bytes, meter
        meter.observe(file, self._clock.monotonic())
        return meter


class RateColumn(ProgressColumn):
    """Rate and time left, as they are now: what stalls is not shown as fast."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def render(self, task: Task) -> Text:
        meter: Meter | None = task.fields.get("meter")
        if meter is None:
            return Text("")
        now_s, overall = self._clock.monotonic(), meter.overall(self._clock.monotonic())
        stalled_s = now_s - float(task.fields.get("moved_s", now_s))
        if stalled_s >= _STALLED_S and overall.done_bytes < overall.total_bytes:
            return Text(f"nothing received for {stalled_s:.0f} s", style="yellow")
        return Text(_pace(overall))


class PullLines:
    """One for each phase and each tenth."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: tuple[PullPhase, int] | None = None

    def show(self, step: ProgressStep) -> None:
        mark = step.phase, int(step.percentage) // _LINE_EVERY_PERCENT
        if mark != self._told:
            self._told = mark
            print(one_line(f"{self._name}: {_WORDS[step.phase]}, {step.percentage:.0f}%"), file=sys.stderr)


def _pace(overall: Overall) -> str:
    if overall.left is None or overall.done_bytes >= overall.total_bytes:
        return ""
    return f"{install_size(int(overall.rate_bytes_s))}/s, {span(overall.left)} left"


def _bars(clock: Clock) -> Progress:
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        RateColumn(clock),
        console=console,
    )


def _short(file: str) -> str:
    """A digest by its first characters, an archive by its name."""
    name = file.removeprefix("sha256:") if file.startswith("sha256:") else file.rpartition("/")[2]
    return one_line(name)[:_DIGEST_CHARS].ljust(_DIGEST_CHARS)
