"""Operations as people see them. Pure: from the frontend's answers to words, lines and tables."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from remuda.cli.ops_state import AT_WORK, short_id, steps_of, title
from remuda.cli.output import one_line
from remuda.cli.render import UNKNOWN, Column, ago, facts, fitting, local, span, table_of
from remuda.gateway.attention import FRONTENDS
from remuda.wire.operations import OpView, PlannedFetch, ProblemView, ProgressView, StepView
from remuda.wire.sizes import install_size

_BAR_CHARS: Final = 24
_BAR_CHARS_NARROW: Final = 10
_NARROW: Final = 110  # Below so many columns a node's name comes before everything else.
_NAME_CHARS_MAX: Final = 32
_WORD_CHARS: Final = 12
_GAP: Final = 2
_STYLES: Final = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "skipped": "yellow",
    "running": "cyan",
    "stopping": "yellow",
    "cancelling": "yellow",
    "paused": "yellow",
    "retrying": "yellow",
}
_WORDS: Final = {"pending": "waiting", "succeeded": "done"}
_PLANNED: Final = {"pending": "to do", "succeeded": "done"}
_UNMEASURED: Final = ("loading", "starting", "resolving")
_PHASES: Final = {"extracting": "unpacking", "hashing": "checking", "staging": "copying"}
_BY_BYTES: Final = ("hashing", "staging")  # Their percentage is of the bytes shown, not of the whole load.
_STAGES: Final = {"prove": "proving", "roll_back": "rolling back"}
StepPlace = tuple[str, str]
"""An operation and a node of it, by their ids."""
_NONE_STALLED: Final[Mapping[StepPlace, int]] = {}
_NO_RETRIES: Final[Mapping[StepPlace, float]] = {}
_MOST_TELLING: Final = ("failed", "running", "stopping", "pending", "cancelled", "skipped", "succeeded")
_COUNTED: Final = ("running", "stopping", "pending", "failed", "skipped", "cancelled")


# Words.


def measured(step: StepView) -> bool:
    """Whether its progress is known. That of a backend that reads its model is not."""
    return step.progress is not None and step.progress.phase not in _UNMEASURED


def counted(op: OpView) -> str:
    """`2 of 3 nodes done, 1 failed`."""
    total = sum(op.counts.values())
    if op.selection == FRONTENDS and total == 1:
        return _WORDS.get(state := next(iter(op.counts)), state)
    where = "place" if op.selection == FRONTENDS else "node"
    parts = [f"{op.counts.get('succeeded', 0)} of {total} {where}{'' if total == 1 else 's'} done"]
    parts += [f"{op.counts[state]} {_WORDS.get(state, state)}" for state in _COUNTED if op.counts.get(state)]
    return ", ".join(parts)


def step_word(step: StepView) -> str:
    """What a node does, or how it ended."""
    if step.state in ("pending", "running") and step.stage in _STAGES:
        return _STAGES[step.stage]
    if step.state != "running":
        return _WORDS.get(step.state, step.state)
    phase = step.progress.phase if step.progress is not None else ""
    return _PHASES.get(phase, phase) or "at work"


def note(step: StepView, retry_in_s: float | None = None) -> str:
    """Why it waits, or how it ended; with what went wrong last, where that is not the same. `retry_in_s`:
    until its next attempt now, where the step is from some time ago."""
    problem = "" if step.problem is None or step.state == "succeeded" else step.problem.message
    reason = retrying(step, retry_in_s) or step.reason
    if problem and problem not in reason:
        return f"{reason}; last: {problem}" if reason else problem
    return reason


def retrying(step: StepView, retry_in_s: float | None = None) -> str:
    """`retrying in 30s`; empty for a step that does not wait for its next attempt."""
    left_s = step.retry_in_s if retry_in_s is None else retry_in_s
    if step.state != "pending" or step.retry_in_s is None or left_s is None:
        return ""
    return f"retrying in {span(timedelta(seconds=left_s))}" if left_s >= 1 else "retrying now"


def percentage(progress: ProgressView) -> float:
    if progress.phase in _BY_BYTES and progress.total_bytes:
        return 100 * min(progress.current_bytes / progress.total_bytes, 1.0)
    return progress.percentage


def amount(progress: ProgressView) -> str:
    """`12.0 MiB of 30.0 MiB`; empty where bytes are not known."""
    if not progress.current_bytes and not progress.total_bytes:
        return ""
    done = install_size(progress.current_bytes)
    return f"{done} of {install_size(progress.total_bytes)}" if progress.total_bytes else done


def outcome_lines(op: OpView) -> list[str]:
    """How an operation ended: in sum, and each node where it is not simply done. The failure that stopped a
    roll-out is shown for its own node, and not again for each that did not begin."""
    lines = [f"{title(op)}: {counted(op)}"]
    reasons = [f": {step.reason}" for step in steps_of(op) if step.state == "failed" and step.reason]
    for step in steps_of(op):
        text = note(step)
        if step.state == "cancelled":
            text = next((text.removesuffix(why) for why in reasons if text.endswith(why)), text)
        if step.state == "succeeded" and not text:
            continue
        word = f"{step_word(step)}{f': {text}' if text else ''}"
        lines.append(f"  {text or word}" if step.node_id == FRONTENDS else f"  {step.node_name}: {word}")
        if step.problem is not None and step.problem.hint:
            lines.append(f"    hint: {step.problem.hint}")
    return [one_line(line) for line in lines]


# Tables.


def op_table(ops: Sequence[OpView], now: datetime, output: Console) -> RenderableType:
    if not ops:
        return Text("no operations")
    columns = [
        Column("ID", [short_id(op.id) for op in ops]),
        Column("KIND", [op.kind for op in ops]),
        Column("WHAT", [op.model or op.backend or op.name or op.uri for op in ops]),
        Column("DONE", [f"{op.counts.get('succeeded', 0)}/{sum(op.counts.values())}" for op in ops]),
        Column("STATE", [_styled(op.status) for op in ops]),
        Column("ASKED", [ago(op.asked_at, now) for op in ops], needed=1, right=True),
        Column("TOOK", [_took(op) for op in ops], needed=3, right=True),
        Column("BY", [op.asked_by or UNKNOWN for op in ops], needed=2),
        Column("NODES", [op.selection or UNKNOWN for op in ops], needed=4),
    ]
    messages = ((short_id(op.id), op.error or (op.message if op.status == "retrying" else "")) for op in ops)
    reasons = [Text(one_line(f"{id}: {why}")) for id, why in messages if why]
    return Group(fitting(columns, output), *([Text(), *reasons] if reasons else []))


def op_page(op: OpView, now: datetime, output: Console) -> RenderableType:
    """Everything about one operation: its nodes, what went wrong, and what was tried."""
    steps = steps_of(op)
    parts: list[RenderableType] = [
        facts(_facts(op, now)),
        Text("\nNodes", style="bold"),
        step_table(steps, output),
    ]
    problems = [
        (step.node_name, step.problem) for step in steps if step.problem and step.state != "succeeded"
    ]
    if problems:
        lines = [line for name, problem in problems for line in _problem_lines(name, problem)]
        parts += [Text("\nProblems", style="bold"), *lines]
    if any(step.attempts for step in steps):
        parts += [Text("\nAttempts", style="bold"), _attempt_table(steps, output)]
    return Group(*parts)


def step_table(steps: Sequence[StepView], output: Console) -> Table:
    columns = [
        Column("NODE", [step.node_name for step in steps]),
        Column("STATE", [_styled(step.state, step_word(step)) for step in steps]),
        Column("PROGRESS", [_progress(step) for step in steps], needed=1),
        Column("BUILD", [next(iter(step.names), UNKNOWN) for step in steps], needed=2),
        Column("VERSION", [step.version or UNKNOWN for step in steps], needed=4),
        Column("ATTEMPT", [str(step.attempt) for step in steps], needed=3, right=True),
        Column("NEXT", [local(step.not_before) if step.not_before else UNKNOWN for step in steps], needed=5),
        Column("WHY", [note(step) or UNKNOWN for step in steps]),
    ]
    return fitting(columns, output)


def plan_table(steps: Sequence[StepView], fetches: Sequence[PlannedFetch] = ()) -> Table:
    """What would be done. `fetches`: what comes to nodes for it, and the room that they have."""
    of = {one.node_id: one for one in fetches}
    known = [of.get(step.node_id) for step in steps]
    sizes = [
        Column("FETCHES", [UNKNOWN if one is None else _most(one.fetch_bytes) for one in known]),
        Column("DISK FREE", [UNKNOWN if one is None else _size(one.disk_free) for one in known]),
    ]
    return table_of(
        [
            Column("NODE", [step.node_name for step in steps]),
            Column("STATE", [_styled(step.state, _PLANNED.get(step.state, step.state)) for step in steps]),
            Column("BUILD", [next(iter(step.names), UNKNOWN) for step in steps]),
            Column("VERSION", [step.version or UNKNOWN for step in steps]),
            *(sizes if fetches else []),
            Column("WHY", [step.reason or UNKNOWN for step in steps]),
        ]
    )


def _most(size: int | None) -> str:
    """Parts of it may be there already."""
    return f"at most {_size(size)}" if size else "nothing" if size == 0 else "size not known"


def _size(size: int | None) -> str:
    return UNKNOWN if size is None else install_size(size)


def progress_table(
    ops: Sequence[OpView],
    rows_max: int,
    width: int,
    stalled_s: Mapping[StepPlace, int] = _NONE_STALLED,
    retry_in_s: Mapping[StepPlace, float] = _NO_RETRIES,
    *,
    all_ops: bool = False,
) -> RenderableType:
    """One bar per node, with its operation where there are several, and by its id where they are `all_ops`.
    Where there are more nodes than rows, those that tell most come first; where the terminal is narrow, the
    figures give way to the nodes' names. `stalled_s`: nodes whose progress stands still, and for how long.
    `retry_in_s`: how long each has to wait now for its next attempt."""
    rows = [(op, step) for op in ops for step in steps_of(op)]
    shown = rows
    if len(rows) > rows_max:
        shown = sorted(rows, key=lambda row: _MOST_TELLING.index(row[1].state))[: max(rows_max - 1, 1)]
    names = [_name(op, step, alone=len(ops) == 1, all_ops=all_ops) for op, step in shown]
    widest = min(max(map(len, names), default=0), _NAME_CHARS_MAX if width < _NARROW else width)
    bar = _BAR_CHARS_NARROW if width < _NARROW else _BAR_CHARS
    room = max(width - widest - _WORD_CHARS - bar - 3 * _GAP, 1)
    table = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    for columns in (widest, _WORD_CHARS, bar, room):
        table.add_column(width=columns, no_wrap=True, overflow="ellipsis")
    for name, (op, step) in zip(names, shown, strict=True):
        place = (op.id, step.node_id)
        noted = note(step, retry_in_s.get(place))
        figures = _figures(step, noted, stalled_s.get(place, 0), narrow=width < _NARROW)
        table.add_row(one_line(name), _styled(step.state, step_word(step)), _bar(step, bar), figures)
    if len(shown) == len(rows):
        return table
    return Group(table, Text(f"and {len(rows) - len(shown)} more nodes: " + "; ".join(map(counted, ops))))


def _name(op: OpView, step: StepView, *, alone: bool, all_ops: bool) -> str:
    if step.node_id == FRONTENDS:
        return f"{title(op)} ({short_id(op.id)})" if all_ops else _file_of(step) or title(op)
    if all_ops:
        return f"{step.node_name}: {title(op)} ({short_id(op.id)})"
    return step.node_name if alone else f"{step.node_name}: {title(op)}"


def _file_of(step: StepView) -> str:
    """`model-00002-of-00003.gguf (2/3)`: the file that is on its way."""
    progress = step.progress
    if progress is None or not progress.file_name:
        return ""
    count = f" ({progress.file_number}/{progress.file_count})" if progress.file_count > 1 else ""
    return f"{progress.file_name}{count}"


def _bar(step: StepView, chars: int) -> RenderableType:
    if step.state in AT_WORK and not measured(step):
        return ProgressBar(total=None, width=chars)
    done = 100.0 if step.state == "succeeded" else 0.0
    done = percentage(step.progress) if step.progress else done
    # Rich's own colours look all the same on terminals that have few.
    return ProgressBar(completed=done, width=chars, complete_style="cyan", finished_style="green")


def _figures(step: StepView, noted: str, stalled_s: int, *, narrow: bool) -> Text:
    """Bytes, rate and time left, or for how long nothing moved; and what else there is to say."""
    text = one_line(noted)
    progress = step.progress
    if progress is None or step.state not in AT_WORK or not measured(step):
        return Text(text)
    share = f"{percentage(progress):.0f}%"
    stalled_s = max(stalled_s, int(progress.age_s or 0))
    parts = [share if narrow else amount(progress) or share]
    if stalled_s:
        return Text.assemble(f"{parts[0]:<3}  ", (f"no progress for {stalled_s} s", "yellow"), f"  {text}")
    if progress.rate_bytes_s:
        parts.append(f"{install_size(int(progress.rate_bytes_s))}/s")
    if progress.left_s is not None:
        parts.append(f"{_seconds(progress.left_s)} left")
    return Text("  ".join([f"{parts[0]:<3}", *parts[1:], *filter(None, [text])]))


def _progress(step: StepView) -> str:
    if step.progress is None or not measured(step):
        return UNKNOWN
    text = amount(step.progress)
    age_s = step.progress.age_s
    age = "" if age_s is None else f"as of {span(timedelta(seconds=age_s))} ago"
    return ", ".join(filter(None, [f"{percentage(step.progress):.0f}%", text, age]))


def _attempt_table(steps: Sequence[StepView], output: Console) -> Table:
    rows = [(step, attempt) for step in steps for attempt in step.attempts]
    columns = [
        Column("NODE", [step.node_name for step, _ in rows]),
        Column("ATTEMPT", [str(one.number) for _, one in rows], right=True),
        Column("STAGE", [one.stage for _, one in rows], needed=2),
        Column("BEGUN", [local(one.begun_at) for _, one in rows], needed=1),
        Column("TOOK", [span(one.ended_at - one.begun_at) if one.ended_at else UNKNOWN for _, one in rows]),
        Column("OUTCOME", [_outcome(one.problem, one.ended_at) for _, one in rows]),
    ]
    return fitting(columns, output)


def _outcome(problem: ProblemView | None, ended_at: datetime | None) -> str:
    if problem is not None:
        return problem.message
    return "done" if ended_at is not None else "under way"


def _problem_lines(name: str, problem: ProblemView) -> list[Text]:
    lines = [Text.assemble((one_line(name), "bold"), one_line(f": {problem.message} [{problem.code}]"))]
    return lines + ([Text(one_line(f"  hint: {problem.hint}"))] if problem.hint else [])


def _facts(op: OpView, now: datetime) -> list[tuple[str, RenderableType]]:
    known: list[tuple[str, RenderableType]] = [
        ("Operation", title(op)),
        ("Id", op.id),
        ("State", Text.assemble(_styled(op.status), f": {counted(op)}")),
        ("Nodes", op.selection or UNKNOWN),
        ("Asked by", f"{op.asked_by or UNKNOWN}, {local(op.asked_at)} ({ago(op.asked_at, now)})"),
    ]
    if len(steps_of(op)) != 1:
        known.append(("At once", f"{op.roll_out.at_once}{', one first' if op.roll_out.canary else ''}"))
    if op.wish not in ("", "run"):
        known.append(("Wanted", op.wish))
    optional = (
        ("From", op.uri),
        ("Alias", op.alias),
        ("Ended", local(op.finished_at) if op.finished_at else ""),
        ("Expires", local(op.expires_at) if op.expires_at and not op.finished_at else ""),
        ("Key", op.idempotency_key),
        ("Put away", "yes" if op.dismissed else ""),
    )
    return known + [(name, value) for name, value in optional if value]


def _took(op: OpView) -> str:
    return UNKNOWN if op.finished_at is None else span(op.finished_at - op.asked_at)


def _styled(state: str, word: str = "") -> Text:
    return Text(one_line(word or state), style=_STYLES.get(state, ""))


def _seconds(count: float) -> str:
    minutes, seconds = divmod(int(count), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if minutes >= 60 else f"{minutes}:{seconds:02}"
