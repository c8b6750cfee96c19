"""Progress of an install, whatever spec events come in."""

from hypothesis import given
from hypothesis import strategies as st

from remuda.oci.fetch import FileProgress, PullPhase
from remuda.oci.model import Descriptor
from remuda.worker.depot.fetch_unpack import InstallTracker, ProgressStep

LAYERS = (Descriptor("a", 100, "tar"), Descriptor("b", 50, "tar"))
EVENTS = st.builds(
    FileProgress,
    st.sampled_from(["a", "b", "stranger"]),
    st.integers(0, 200),
    st.just(100),
    st.sampled_from([PullPhase.DOWNLOADING, PullPhase.EXTRACTING]),
)


@given(st.lists(EVENTS | st.none(), max_size=30))
def test_neither_percentage_nor_phase_goes_back(events: list[FileProgress | None]) -> None:
    steps: list[ProgressStep] = []
    tracker = InstallTracker(steps.append)

    for event in events:
        if event is None:  # The next source.
            tracker.begin()
            tracker.expect(LAYERS)
        else:
            tracker.observe(event)
    tracker.arrive()

    percentages = [step.percentage for step in steps]
    phases = [list(PullPhase).index(step.phase) for step in steps]
    assert percentages == sorted(percentages)
    assert phases == sorted(phases)
    assert percentages[-1] == 100


def test_half_is_done_when_all_has_arrived() -> None:
    steps: list[ProgressStep] = []
    tracker = InstallTracker(steps.append)
    tracker.expect(LAYERS)

    for layer in LAYERS:
        tracker.observe(FileProgress(layer.digest, layer.size, layer.size))

    assert steps[-1] == ProgressStep(PullPhase.EXTRACTING, 50.0, FileProgress("b", 50, 50))
