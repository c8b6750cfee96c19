"""What the bars of a pull show."""

from rich.progress import Progress

from remuda.cli.pull_progress import Bars
from remuda.oci.progress import FileProgress, Phase
from remuda.worker.depot.journey import Step


def shown(*events: FileProgress) -> list[tuple[str, float, float | None]]:
    progress = Progress(disable=True)
    bars = Bars(progress)
    for event in events:
        bars.show(Step(event.phase, 0, event))
    return [(task.description.split()[1], task.completed, task.total) for task in progress.tasks]


def test_a_layer_that_is_unpacked_while_it_arrives_is_shown_as_arriving() -> None:
    events = FileProgress("sha256:1", 60, 100), FileProgress("sha256:1", 50, 100, Phase.EXTRACTING)

    assert shown(*events) == [("downloading", 60, 100)]


def test_a_layer_that_has_arrived_is_shown_as_being_unpacked() -> None:
    events = FileProgress("sha256:1", 100, 100), FileProgress("sha256:1", 50, 100, Phase.EXTRACTING)

    assert shown(*events) == [("unpacking", 50, 100)]


def test_each_layer_has_a_bar() -> None:
    assert len(shown(FileProgress("sha256:1", 1, 100), FileProgress("sha256:2", 1, 100))) == 2
