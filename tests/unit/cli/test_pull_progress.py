"""What the bars of a pull show."""

from rich.progress import Progress

from remuda.cli.pull_progress import PullBars, RateColumn
from remuda.core.clock import SystemClock
from remuda.oci.fetch import FileProgress, PullPhase
from remuda.worker.depot.fetch_unpack import ProgressStep
from tests.support.clocks import HandClock

MIB = 1 << 20


class Paced:
    """One layer of 100 MiB and what is said of its pace."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self._progress = Progress(disable=True)
        self._bars = PullBars(self._progress, self.clock)

    def tell(self, at_s: float, done_mib: int, phase: PullPhase = PullPhase.DOWNLOADING) -> None:
        self.clock.passed_s = at_s
        self._bars.show(ProgressStep(phase, 0, FileProgress("sha256:1", done_mib * MIB, 100 * MIB, phase)))

    @property
    def pace(self) -> str:
        return RateColumn(self.clock).render(self._progress.tasks[0]).plain


def shown(*events: FileProgress) -> list[tuple[str, float, float | None]]:
    progress = Progress(disable=True)
    bars = PullBars(progress, SystemClock())
    for event in events:
        bars.show(ProgressStep(event.phase, 0, event))
    return [(task.description.split()[1], task.completed, task.total) for task in progress.tasks]


def test_a_layer_that_is_unpacked_while_it_arrives_is_shown_as_arriving() -> None:
    events = FileProgress("sha256:1", 60, 100), FileProgress("sha256:1", 50, 100, PullPhase.EXTRACTING)

    assert shown(*events) == [("downloading", 60, 100)]


def test_a_layer_that_has_arrived_is_shown_as_being_unpacked() -> None:
    events = FileProgress("sha256:1", 100, 100), FileProgress("sha256:1", 50, 100, PullPhase.EXTRACTING)

    assert shown(*events) == [("unpacking", 50, 100)]


def test_each_layer_has_a_bar() -> None:
    assert len(shown(FileProgress("sha256:1", 1, 100), FileProgress("sha256:2", 1, 100))) == 2


def test_what_lay_on_the_disk_makes_a_resumed_layer_no_faster() -> None:
    layer = Paced()
    layer.tell(0, 0)
    layer.tell(0, 80)
    layer.tell(2, 84)

    assert layer.pace == "2.0 MiB/s, 8s left"


def test_a_layer_that_stalls_is_not_shown_as_fast() -> None:
    layer = Paced()
    layer.tell(0, 10)
    layer.tell(6, 20)
    layer.clock.passed_s = 10

    assert layer.pace == "1.0 MiB/s, 1m 20s left"


def test_a_layer_whose_line_is_dead_says_so() -> None:
    layer = Paced()
    layer.tell(0, 10)
    layer.tell(6, 20)
    layer.clock.passed_s = 12

    assert layer.pace == "nothing received for 6 s"


def test_unpacking_has_no_pace_of_a_download() -> None:
    layer = Paced()
    layer.tell(0, 10)
    layer.tell(5, 100)
    layer.tell(6, 50, PullPhase.EXTRACTING)

    assert layer.pace == ""
