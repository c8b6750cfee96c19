"""Waits for operations to finish and prints how they ended. Ctrl-C ends the waiting, not the operations."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import click

from remuda.cli.exits import Exit, Interrupted, Unfinished, report
from remuda.cli.fleet_tables import some_of
from remuda.cli.invocation import ClientOptions
from remuda.cli.ops_state import Picture, by_frontends, short_id, steps_of, title
from remuda.cli.ops_tables import outcome_lines
from remuda.cli.ops_watch import displaying, follow
from remuda.cli.output import one_line
from remuda.core.errors import FrontendUnreachable, Problem
from remuda.gateway.attention import FRONTENDS
from remuda.wire.codec import encode
from remuda.wire.operations import OpView, ProblemView

_TOO_LATE = "expired"  # It reached the expiry that was asked for; that is not an error.
_WRONG_SOURCE = frozenset({"not_found", "invalid", "content_refused"})  # A retry would ask for the same.
_BAD_BUILD = frozenset({"proof_failed", "rolled_back"})  # The node has the version before again.

_TOLD_AS_ERRORS = ("failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Waiting:
    """`watch`: with --json, print a line for each change too."""

    wait: bool = True
    within: timedelta | None = None
    watch: bool = False


def wait_and_report(
    options: ClientOptions,
    ops: Sequence[OpView],
    waiting: Waiting,
    *,
    together: bool = False,
    quiet: bool = False,
) -> Exit:
    """Wait until these operations have finished, and print the outcome. `together`: with --json, one document
    for all. `quiet`: of success nothing is printed. Raises Interrupted or Unfinished, naming the command that
    shows them, if they have not."""
    if not waiting.wait or not ops:
        _print_started(options, ops, together)
        return Exit.DONE
    picture = Picture({op.id: op for op in ops})
    try:
        picture = _wait(options, picture, waiting)
    except KeyboardInterrupt:
        raise Interrupted(f"no longer waiting; {_still_running(ops)}", hint=_show_hint(ops)) from None
    except FrontendUnreachable as error:
        raise FrontendUnreachable(error.message, hint=f"{_still_running(ops)}; {_show_hint(ops)}") from error
    ended = [picture.ops[op.id] for op in ops]
    if not quiet or any(op.status != "succeeded" for op in ended):
        _print_outcome(options, ended, waiting, together)
    if not picture.over(op.id for op in ops):
        assert waiting.within is not None, "leave --timeout out to wait as long as it takes"
        waited = f"not finished after {waiting.within.total_seconds():g} s"
        raise Unfinished(f"{waited}; {_still_running(ops)}", hint=_show_hint(ops))
    return _exit_code(options, ended)


def _wait(options: ClientOptions, picture: Picture, waiting: Waiting) -> Picture:
    """The latest state of these operations."""
    wanted = tuple(picture.ops)
    if picture.over(wanted):
        return picture
    # The outcome has standard output to itself, unless all of it is lines of JSON.
    file = sys.stdout if options.as_json else sys.stderr
    with displaying(as_json=options.as_json, watch=waiting.watch, file=file, outcome_follows=True) as display:
        for seen in follow(options, wanted, waiting.within, display):
            picture = Picture({**picture.ops, **seen.ops})
            if picture.over(wanted):
                break
    return picture


def _exit_code(options: ClientOptions, ended: Sequence[OpView]) -> Exit:
    problems = [problem for op in ended if (problem := _problem(op, as_json=options.as_json)) is not None]
    if options.as_json and len(problems) > 1:  # Programs get one document.
        messages, hints = (
            "; ".join(filter(None, texts)) for texts in zip(*map(_texts, problems), strict=True)
        )
        problems = [Problem("failed_on_nodes", messages, hints)]
    for problem in problems:
        report(problem, as_json=options.as_json)
    return Exit.DONE if all(op.status == "succeeded" for op in ended) else Exit.NOT_EVERYWHERE


def _problem(op: OpView, *, as_json: bool) -> Problem | None:
    """The reasons are in the JSON document only: on a terminal they were just printed, node by node. Of what
    concerns no node nothing was printed."""
    if op.status == "failed" and by_frontends(op):
        why = next((step.problem.message for step in steps_of(op) if step.problem), op.error)
        return Problem("failed_on_nodes", f"{title(op)}: {why or 'it failed'}", _again(op))
    if op.status == "failed":
        nodes = [
            step.node_name for step in steps_of(op) if step.state == "failed" and step.node_id != FRONTENDS
        ]
        where = f"failed on {some_of(nodes)}" if nodes and not as_json else op.error or "it failed"
        return Problem("failed_on_nodes", f"{title(op)}: {where}", _again(op))
    return Problem("cancelled", f"{title(op)}: it was cancelled") if op.status == "cancelled" else None


def _texts(problem: Problem) -> tuple[str, str]:
    return problem.message, problem.hint


def _again(op: OpView) -> str:
    """The command to retry, and what to change first where a plain retry would fail again."""
    problems = [step.problem for step in op.steps or () if step.state == "failed" and step.problem]
    if problems and all(problem.code in _BAD_BUILD for problem in problems):
        return "the build has to be fixed first: push one that starts, then install or upgrade to it"
    may_pass = not problems or any(problem.retryable or problem.code == _TOO_LATE for problem in problems)
    first = "" if may_pass else "fix the cause first; then "
    if by_frontends(op):
        return _frontends_again(op, problems, may_pass=may_pass)
    if op.selection == FRONTENDS:
        return f"{first}try it again with: remuda ops retry {short_id(op.id)}"
    if op.kind == "load":
        return f"{first}try it again with: remuda models load {shlex.quote(op.model)}"
    return f"{first}try those nodes again with: remuda ops retry {short_id(op.id)}"


def _frontends_again(op: OpView, problems: Sequence[ProblemView], *, may_pass: bool) -> str:
    known = next((problem.hint for problem in problems if problem.hint), "")
    if op.kind == "install_model" and any(problem.code in _WRONG_SOURCE for problem in problems):
        return (
            f"{known or 'check what was asked for'}; then install it anew: remuda models install SOURCE|NAME"
        )
    again = f"try it again with: remuda ops retry {short_id(op.id)}"
    if may_pass:
        return f"{known}; {again}" if known else again
    return f"{known or 'fix the cause first'}; then {again}"


def _print_started(options: ClientOptions, ops: Sequence[OpView], together: bool) -> None:
    if options.as_json:
        _print_json(ops, together)
        return
    for op in ops:
        click.echo(
            one_line(
                f"{title(op)}: operation {short_id(op.id)}; see it with: remuda ops watch {short_id(op.id)}"
            )
        )


def _print_outcome(options: ClientOptions, ops: Sequence[OpView], waiting: Waiting, together: bool) -> None:
    if options.as_json:
        _print_json(ops, together, as_event=waiting.watch)
        return
    for op in ops:
        if by_frontends(op) and op.status in _TOLD_AS_ERRORS:
            continue
        for line in outcome_lines(op):
            click.echo(line)


def _print_json(ops: Sequence[OpView], together: bool, *, as_event: bool = False) -> None:
    documents = [json.loads(encode(op)) for op in ops]
    document = {"operations": documents} if together else documents[0]
    click.echo(json.dumps({"event": "end", "data": document} if as_event else document))


def _still_running(ops: Sequence[OpView]) -> str:
    ids = ", ".join(short_id(op.id) for op in ops)
    return f"operation{'s' if len(ops) > 1 else ''} {ids} {'continue' if len(ops) > 1 else 'continues'}"


def _show_hint(ops: Sequence[OpView]) -> str:
    if len(ops) > 1:
        return "look with: remuda ops; stop one with: remuda ops cancel ID"
    id = short_id(ops[0].id)
    return f"look with: remuda ops watch {id}; stop it with: remuda ops cancel {id}"
