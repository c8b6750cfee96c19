"""`remuda explain`: why a request went where it did."""

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from remuda.cli.commands import client_command, connect, examples
from remuda.cli.invocation import ClientOptions
from remuda.cli.output import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remuda.wire.explanations import RequestExplanation


@click.command(
    "explain",
    short_help="Show why a request went to its node, and what it waited for.",
    epilog=examples("remuda explain 5f2c-1a", "remuda explain my-own-id --json"),
)
@click.argument("request_id", metavar="REQUEST_ID")
@client_command
def command(options: ClientOptions, request_id: str) -> None:
    """Show why a request went to its node, how long it waited and for what.

    REQUEST_ID is in the answer's header X-Request-Id and in the frontend's log; a client may choose it by
    sending that header. Each frontend keeps its last 10,000 requests in memory; any frontend can be asked.
    """
    from remuda.wire.explanations import RequestExplanation

    with connect(options) as client:
        answer = client.get("api", "requests", request_id, "explanation")
    if options.as_json:
        click.echo(answer.body)
        return
    for line in explanation_lines(answer.read(RequestExplanation)):
        click.echo(one_line(line))


def explanation_lines(one: "RequestExplanation") -> "Iterator[str]":
    by = f"asked for by the key {one.caller}, " if one.caller else ""
    at = one.at.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    yield f"{one.request_id}: {one.model or 'no known model'}, {by}finished at {at}"
    if one.error:
        reason = f": {one.error_message}" if one.error_message else ""
        yield f"  refused or failed with {one.status} {one.error}{reason}"
    if one.node:
        verb = "last tried on" if one.error else "answered by"
        yield f"  {verb} {one.node} ({one.replica}): {one.why}"
    for failed in one.tried:
        yield f"  {failed.node} ({failed.replica}) failed: {failed.failure}"
    if one.reloaded:
        yield "  all its replicas were gone, so it was loaded again for this request"
    if one.waits:
        yield f"  it waited {_time(one.waited_seconds)}:"
        for wait in one.waits:
            yield f"    {_time(wait.seconds)} for {wait.cause}"
    elif one.node:
        yield "  it did not wait"
    finished = f"finished after {_time(one.total_seconds)}"
    first = one.first_token_seconds
    if first is None or _time(first) == _time(one.total_seconds):  # It came in one piece.
        yield f"  {finished}"
    else:
        yield f"  first token after {_time(first)}, {finished}"
    if one.frontend:
        yield f"  decided by the frontend {one.frontend}"


def _time(seconds: float) -> str:
    from remuda.cli.render import span

    if seconds < 1:
        return f"{seconds:.3f} s"
    return f"{seconds:.1f} s" if seconds < 60 else span(timedelta(seconds=seconds))
