"""What people and programs see while an operation runs, and when it has ended."""

from datetime import timedelta
from io import StringIO

from rich.console import Console

from remuda.cli.following import Lost
from remuda.cli.ops_state import Picture
from remuda.cli.ops_tables import op_page, op_table, outcome_lines, progress_table, step_table
from remuda.cli.ops_watch import JsonLines, OperationBars, OperationLines
from remuda.core.errors import FrontendUnreachable
from remuda.core.sse import SseEvent
from remuda.wire.operations import AttemptView, OpView, ProblemView, ProgressView
from tests.support.clocks import HandClock
from tests.unit.cli.ops_views import ID, NOON, a_step, an_op, document, op_event, tick

LOST = Lost(FrontendUnreachable("nothing listens there"), 1.0)
FULL = ProblemView(code="disk_full", message="the disk is full", hint="free 3 GiB", retryable=True)


def shown(display: OperationLines | OperationBars | JsonLines, *events: SseEvent) -> None:
    picture = Picture()
    for event in events:
        picture = picture.after(event)
        display.show(picture, event)


def lines(*events: SseEvent) -> list[str]:
    file = StringIO()
    shown(OperationLines(file, HandClock()), *events)
    return file.getvalue().splitlines()


def rendered(content: object, width: int = 200, height: int = 25) -> str:
    console = Console(file=StringIO(), width=width, height=height, markup=False)
    with console.capture() as captured:
        console.print(content)
    return captured.get()


def test_lines_tell_each_tenth_and_each_state_once() -> None:
    ticks = [
        tick(percentage=part, phase="downloading", current_bytes=part << 20, total_bytes=100 << 20)
        for part in (1, 2, 11, 12, 19)
    ]
    ended = an_op(a_step(state="succeeded"), finished_at=NOON)

    assert lines(op_event(an_op(a_step())), *ticks, op_event(ended), op_event(ended)) == [
        "install echo on attic: at work",
        "install echo on attic: downloading, 1%, 1.0 MiB of 100.0 MiB",
        "install echo on attic: downloading, 11%, 11.0 MiB of 100.0 MiB",
        "install echo on attic: done",
    ]


def test_lines_say_why_a_node_waits() -> None:
    waiting = a_step(state="pending", reason="the next attempt is at 12:05", problem=FULL)

    told = "install echo on attic: waiting: the next attempt is at 12:05; last: the disk is full"
    assert lines(op_event(an_op(waiting))) == [told]


def test_lines_tell_the_reason_of_a_failure_once_and_when_the_next_attempt_is() -> None:
    def failed(attempt: int, in_s: float) -> SseEvent:
        waits = a_step(
            state="pending", attempt=attempt, reason="waiting to retry", problem=FULL, retry_in_s=in_s
        )
        return op_event(an_op(waits))

    def again(attempt: int) -> SseEvent:
        return op_event(an_op(a_step(attempt=attempt, problem=FULL)))

    assert lines(failed(1, 30), failed(1, 12), again(2), failed(2, 61), again(3)) == [
        "install echo on attic: waiting: retrying in 30s; last: the disk is full",
        "install echo on attic: at work",
        "install echo on attic: waiting: attempt 2 failed for the same reason; retrying in 1m 1s",
        "install echo on attic: at work",
    ]


def test_bars_count_down_to_the_next_attempt() -> None:
    clock = HandClock()
    bars = OperationBars(Console(file=StringIO(), width=200, height=25, markup=False), clock)
    waits = a_step(state="pending", reason="waiting to retry", problem=FULL, retry_in_s=30)
    shown(bars, op_event(an_op(waits)))
    clock.passed_s += 12
    bars.heard()
    assert "retrying in 18s; last: the disk is full" in rendered(bars.render())
    clock.passed_s += 60
    bars.heard()
    assert "retrying now" in rendered(bars.render())


READY = SseEvent("ready", "{}", "")
IDLE = "no operation is running; waiting for one, Ctrl-C to stop"


def test_all_operations_are_told_apart_by_their_ids() -> None:
    file = StringIO()
    shown(OperationLines(file, HandClock(), all_ops=True), op_event(an_op(a_step())), READY)
    assert file.getvalue().splitlines() == [f"{ID[:8]}: install echo on attic: at work"]
    bars = OperationBars(Console(file=StringIO(), width=200, height=25), HandClock(), all_ops=True)
    shown(bars, op_event(an_op(a_step())), READY)
    assert f"attic: install echo ({ID[:8]})" in rendered(bars.render())
    assert IDLE not in rendered(bars.render())


def test_whoever_watches_all_operations_is_told_that_none_is_running() -> None:
    file = StringIO()
    shown(OperationLines(file, HandClock(), all_ops=True), READY, READY)
    assert file.getvalue().splitlines() == [IDLE]
    bars = OperationBars(Console(file=StringIO(), width=200, height=25), HandClock(), all_ops=True)
    assert IDLE not in rendered(bars.render()), "nobody has told yet"
    shown(bars, READY)
    assert rendered(bars.render()).strip() == IDLE
    over = an_op(a_step(state="succeeded"), finished_at=NOON)
    shown(bars, READY, op_event(an_op(a_step())))
    assert IDLE not in rendered(bars.render())
    shown(bars, READY, op_event(over))
    assert IDLE in rendered(bars.render())


def test_lines_do_not_tell_what_was_over_before() -> None:
    assert lines(op_event(an_op(a_step(state="succeeded"), finished_at=NOON))) == []


def test_lines_say_once_that_the_frontend_is_away_and_that_it_is_back() -> None:
    file = StringIO()
    display = OperationLines(file, HandClock())
    for _ in range(3):
        display.lost(LOST)
    shown(display, op_event(an_op(a_step())))

    assert file.getvalue().splitlines()[:2] == [
        "nothing listens there; trying again",
        "connected to the frontend again",
    ]


def test_lines_say_within_seconds_that_nothing_is_heard_and_when_it_is_again() -> None:
    file, clock = StringIO(), HandClock()
    display = OperationLines(file, clock)
    for _ in range(4):
        clock.advance(timedelta(seconds=2))
        display.look()
    display.heard()
    clock.advance(timedelta(seconds=2))
    display.look()

    assert file.getvalue().splitlines() == [
        "nothing heard from the frontend for 6 s",
        "connected to the frontend again",
    ]


def test_what_a_worker_says_cannot_write_on_the_terminal() -> None:
    [line] = lines(op_event(an_op(a_step("at\x1b[2Jtic", "failed", reason="one\ntwo"))))

    assert line == "install echo on at [2Jtic: failed: one two"


def test_programs_get_a_line_of_json_for_each_change() -> None:
    file = StringIO()
    shown(JsonLines(file), SseEvent("snapshot", "{}"), op_event(an_op(a_step())), tick(percentage=30))

    op, progress = map(document, file.getvalue().splitlines())
    assert (op["event"], op["data"]["id"]) == ("op", ID)
    assert (progress["event"], progress["data"]["progress"]["percentage"]) == ("progress", 30)


def test_a_bar_shows_bytes_rate_time_left_and_phase() -> None:
    progress = ProgressView(
        percentage=25,
        phase="extracting",
        current_bytes=1 << 20,
        total_bytes=4 << 20,
        rate_bytes_s=1 << 20,
        left_s=63.2,
    )

    row = rendered(progress_table([an_op(a_step(progress=progress))], 10, 200))

    assert row.split()[:2] == ["attic", "unpacking"]
    assert "1.0 MiB of 4.0 MiB  1.0 MiB/s  1:03 left" in row


def test_each_node_has_a_bar_and_one_that_waits_its_reason() -> None:
    op = an_op(a_step("attic", "succeeded"), a_step("cellar", "pending", reason="offline since noon"))

    attic, cellar = rendered(progress_table([op], 10, 200)).splitlines()

    assert attic.split()[:2] == ["attic", "done"]
    assert cellar.rstrip().endswith("offline since noon")


def test_of_too_many_nodes_those_that_tell_most_are_shown() -> None:
    done = [a_step(f"done-{number}", "succeeded") for number in range(50)]
    op = an_op(*done, a_step("broken", "failed"), a_step("busy"))

    rows = rendered(progress_table([op], 4, 200)).splitlines()

    assert [row.split()[0] for row in rows] == ["broken", "busy", "done-0", "and"]
    assert rows[-1].strip() == "and 49 more nodes: 50 of 52 nodes done, 1 running, 1 failed"


def test_bars_show_what_was_seen_running_until_it_is_over_and_say_when_the_line_is_lost() -> None:
    bars = OperationBars(Console(file=StringIO(), width=100, height=20), HandClock())
    old = an_op(a_step("old", "succeeded"), id="old", finished_at=NOON)
    ended = an_op(a_step(state="succeeded"), finished_at=NOON)
    shown(bars, op_event(old), op_event(an_op(a_step())), op_event(ended))

    assert "old" not in rendered(bars.render())
    assert rendered(bars.render()).split()[:2] == ["attic", "done"]
    bars.lost(LOST)
    assert rendered(bars.render()).splitlines()[0].strip() == "nothing listens there; trying again"


def test_a_bar_whose_node_stands_still_says_for_how_long() -> None:
    clock = HandClock()
    bars = OperationBars(Console(file=StringIO(), width=100, height=20), clock)

    def moved(to_mib: int, rate_bytes_s: float = 0, left_s: float | None = None) -> SseEvent:
        return tick(
            percentage=2 * to_mib,
            phase="downloading",
            current_bytes=to_mib << 20,
            total_bytes=50 << 20,
            rate_bytes_s=rate_bytes_s,
            left_s=left_s,
        )

    shown(bars, op_event(an_op(a_step())), moved(5, rate_bytes_s=2e6, left_s=30))
    assert "left" in rendered(bars.render())

    clock.passed_s += 7
    bars.heard()  # The frontend is there; the node is not.

    assert "no progress for 7 s" in rendered(bars.render())
    assert "left" not in rendered(bars.render())
    shown(bars, op_event(an_op(a_step())), moved(10))
    assert "no progress" not in rendered(bars.render())


def test_bars_say_within_seconds_that_nothing_comes_from_the_frontend() -> None:
    clock = HandClock()
    bars = OperationBars(Console(file=StringIO(), width=100, height=20), clock)
    shown(bars, op_event(an_op(a_step())))
    clock.passed_s += 5
    bars.heard()
    clock.passed_s += 5
    assert "nothing heard" not in rendered(bars.render())

    clock.passed_s += 4

    first, second = rendered(bars.render()).splitlines()
    assert first.strip() == "nothing heard from the frontend for 9 s; what is shown may be out of date"
    assert second.split()[0] == "attic"


def test_progress_that_is_old_is_shown_with_its_age() -> None:
    progress = ProgressView(percentage=45, phase="downloading", current_bytes=1, total_bytes=2, age_s=125)
    assert "45%, 1 B of 2 B, as of 2m 5s ago" in " ".join(
        rendered(step_table([a_step(progress=progress)], Console(width=200)), width=200).split()
    )
    assert "no progress for 125 s" in rendered(progress_table([an_op(a_step(progress=progress))], 10, 100))


def test_names_of_nodes_stay_readable_on_a_narrow_terminal() -> None:
    progress = ProgressView(
        percentage=42,
        phase="downloading",
        current_bytes=420 << 20,
        total_bytes=1000 << 20,
        rate_bytes_s=12 << 20,
        left_s=4000,
    )
    why = "the registry cannot be reached from there; it is tried again in a while, and so on and on"
    op = an_op(a_step("workshop-gpu-machine-12", progress=progress), a_step("attic", "pending", reason=why))
    other = an_op(a_step("workshop-gpu-machine-12", progress=progress), id="another")

    first, second = rendered(progress_table([op], 10, 80), width=80).splitlines()
    assert first.split()[:2] == ["workshop-gpu-machine-12", "downloading"]
    assert "42%  12.0 MiB/s  1:06:40 left" in first
    assert second.split()[:2] == ["attic", "waiting"]
    assert second.rstrip().endswith("…")
    both = rendered(progress_table([op, other], 10, 80), width=80)
    assert both.count("workshop-gpu-machine-12: ") == 2


def test_the_outcome_names_each_node_that_is_not_simply_done_and_why() -> None:
    op = an_op(
        a_step("attic", "failed", reason="the disk is full", problem=FULL),
        a_step("barn", "succeeded"),
        a_step("cellar", "skipped", reason="no build fits"),
    )

    assert outcome_lines(op) == [
        "install echo: 1 of 3 nodes done, 1 failed, 1 skipped",
        "  attic: failed: the disk is full",
        "    hint: free 3 GiB",
        "  cellar: skipped: no build fits",
    ]


def test_the_list_has_a_row_per_operation_and_why_one_failed() -> None:
    op = an_op(a_step(state="failed"), status="failed", error="attic: the disk is full", asked_by="ann")

    table = rendered(op_table([op], NOON, Console(width=200, file=StringIO())))

    row = table.splitlines()[1].split()
    assert row[:8] == ["3f2a1b0c", "install", "echo", "0/1", "failed", "0s", "ago", "-"]
    assert "3f2a1b0c: attic: the disk is full" in table


def test_files_that_are_copied_are_measured_by_their_bytes() -> None:
    progress = ProgressView(percentage=90, phase="staging", current_bytes=10 << 20, total_bytes=10 << 20)
    file = StringIO()
    op = an_op(a_step(progress=progress), kind="load", model="qwen")
    OperationLines(file, HandClock()).show(Picture({ID: op}), op_event(op))
    assert file.getvalue() == "load qwen on attic: copying, 100%, 10.0 MiB of 10.0 MiB\n"


def test_the_list_tells_why_an_operation_is_retried() -> None:
    op = an_op(a_step(state="pending"), status="retrying", message="to be retried. hub cannot be reached")
    table = rendered(op_table([op], NOON, Console(width=200, file=StringIO())))
    assert "3f2a1b0c: to be retried. hub cannot be reached" in table


def test_a_narrow_terminal_keeps_what_matters() -> None:
    table = rendered(op_table([an_op(a_step())], NOON, Console(width=50, file=StringIO())), width=50)

    assert table.splitlines()[0].split() == ["ID", "KIND", "WHAT", "DONE", "STATE", "ASKED", "BY"]


def test_the_page_of_an_operation_has_its_attempts_and_their_problems() -> None:
    attempts = (
        AttemptView(number=1, stage="apply", begun_at=NOON, ended_at=NOON, problem=FULL),
        AttemptView(number=2, stage="apply", begun_at=NOON),
    )
    op: OpView = an_op(a_step(attempt=2, problem=FULL, attempts=attempts))

    page = rendered(op_page(op, NOON, Console(width=200, file=StringIO())))

    assert "attic: the disk is full [disk_full]" in page
    assert "hint: free 3 GiB" in page
    outcomes = [line.split()[-2:] for line in page.splitlines() if line.startswith("attic  ")]
    assert outcomes[-1] == ["under", "way"]


def test_how_many_nodes_are_worked_on_at_once_is_not_told_of_one() -> None:
    console = Console(width=200, file=StringIO())
    assert "At once" not in rendered(op_page(an_op(a_step()), NOON, console))
    assert "At once" in rendered(op_page(an_op(a_step(), a_step("cellar")), NOON, console))
