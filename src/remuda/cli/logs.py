"""`remuda logs`: what backend processes wrote, on whatever node they run."""

import heapq
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from remuda.cli.commands import WholeNumber, client_command, connect, examples
from remuda.cli.invocation import ClientOptions
from remuda.cli.output import one_line, raise_if_reader_gone
from remuda.core import limits

if TYPE_CHECKING:
    from remuda.cli.client import AdminClient
    from remuda.wire.logs import LogLine
    from remuda.wire.nodes import NodeView
    from remuda.wire.serving import ModelItem, ReplicaView

_QUIET_S: Final = 90.0  # A followed log that says nothing new says so more often.
_FOLLOWED_MAX: Final = 32
_CHECK_EVERY_S: Final = 0.5
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
WAIT_S: Final = limits.NODE_LOGS_S + 5  # The frontend asks a node for so long; its answer names the node.


@dataclass(frozen=True, slots=True)
class LogSource:
    """The log of one model or process on one node."""

    node_id: str
    node: str
    name: str


@click.command(
    "logs",
    short_help="Show the output of backends.",
    epilog=examples("remuda logs qwen3-8b", "remuda logs gpu-1 --follow", "remuda logs llama-cpp --tail 50"),
)
@click.argument("what", metavar="NODE|MODEL|BACKEND")
@click.option("--follow", "-f", is_flag=True, help="Keep showing new lines as they come.")
@click.option("--tail", type=WholeNumber(0), default=100, show_default=True, help="Last lines of each log.")
@client_command
def command(options: ClientOptions, what: str, follow: bool, tail: int) -> None:
    """Show what the processes of a node, a model or a backend wrote."""
    with connect(options, WAIT_S) as client:
        sources = _sources(client, what)
        if follow:
            _follow_all(options, sources, tail)
            return
        logs = [(source, _lines(client, source, tail)) for source in sources]
    in_order = by_time(logs)
    if options.as_json:
        click.echo(json.dumps({"lines": [as_json_line(source, line) for source, line in in_order]}))
        return
    for source, line in in_order:
        click.echo(_as_text(source, line, alone=len(logs) == 1))


def _sources(client: "AdminClient", what: str) -> list[LogSource]:
    """NotFound, with the names there are, when nothing of that name has a log."""
    from remuda.core.errors import NotFound
    from remuda.wire.serving import ModelItems, ReplicaViews

    _, nodes = client.nodes()
    wanted = [node for node in nodes if what in (node.name, node.id)]
    if wanted and has_left(wanted[0]):
        raise NotFound(f"{wanted[0].name} left the fleet", hint="its logs are on that machine")
    if wanted:
        names = _names(client, wanted[0], strict=True)
        if not names:
            raise NotFound(f"no backend has written anything on {what} yet")
        return [LogSource(wanted[0].id, wanted[0].name, name) for name in names]
    replicas = client.get("api", "replicas").read(ReplicaViews).replicas
    there = [LogSource(node.id, node.name, name) for node in nodes for name in _names(client, node)]
    models = client.get("api", "models").read(ModelItems).models
    found = matching(what, there, replicas, models)
    if not found:
        known = sorted({source.name for source in there} | {node.name for node in nodes})
        raise NotFound(
            f"there is no log of {what!r}: not a node, nor a model or backend that has written one",
            hint=f"there are: {', '.join(known[:10])}" if known else "there are no nodes yet",
        )
    return found


def matching(
    what: str,
    there: Sequence[LogSource],
    replicas: Sequence["ReplicaView"],
    models: Sequence["ModelItem"] = (),
) -> list[LogSource]:
    """Those of a model, of one of its processes (`model#replica`), or of the models that a backend serves, or
    was to serve: one that does not start has no replica."""
    served = {(row.node_id, row.model) for row in replicas if row.backend == what}
    configured = {model.name for model in models if what and model.backend == what}

    def is_meant(source: LogSource) -> bool:
        model = source.name.rpartition("#")[0] or source.name
        return what in (source.name, model) or (source.node_id, model) in served or model in configured

    return [source for source in there if is_meant(source)]


def has_left(node: "NodeView") -> bool:
    return node.remuda is not None and node.remuda.left


def by_time(
    logs: Sequence[tuple[LogSource, Sequence["LogLine"]]],
) -> list[tuple[LogSource, "LogLine"]]:
    """The lines of all logs in the order they were written. Within one log the order stays as it is, even if
    a clock was set back."""
    return list(heapq.merge(*(_timed(source, lines) for source, lines in logs), key=_time_of))


def _timed(source: LogSource, lines: Sequence["LogLine"]) -> Iterator[tuple[LogSource, "LogLine"]]:
    return ((source, line) for line in lines)


def _time_of(entry: tuple[LogSource, "LogLine"]) -> datetime:
    try:
        at = datetime.fromisoformat(entry[1].timestamp)
    except ValueError:
        return _LONG_AGO
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _names(client: "AdminClient", node: "NodeView", *, strict: bool = False) -> Sequence[str]:
    """The logs that a node has. Unless `strict`, a node that cannot be asked has none: others may."""
    from remuda.core.errors import RemudaError
    from remuda.wire.logs import LogNames

    if not strict and node.status not in ("healthy", "unhealthy", "draining"):
        return ()
    try:
        return client.get("api", "nodes", node.id, "backend-logs").read(LogNames).root
    except RemudaError as error:
        if strict:
            raise
        click.echo(f"{node.name} was left out: {one_line(error.message)}", err=True)
        return ()


def _lines(client: "AdminClient", source: LogSource, tail: int) -> Sequence["LogLine"]:
    from remuda.wire.logs import LogLines

    path = ("api", "nodes", source.node_id, "backend-logs", source.name)
    return client.get(*path, tail=str(tail)).read(LogLines).root


# Following.


def _follow_all(options: ClientOptions, sources: Sequence[LogSource], tail: int) -> None:
    """Each log in a thread of its own, until all of them end, the command is interrupted, or the program that
    reads our output has gone."""
    from remuda.cli.following import followed
    from remuda.core.errors import Invalid, RemudaError

    if len(sources) > _FOLLOWED_MAX:
        raise Invalid(
            f"{len(sources)} logs are too many to follow at once",
            hint=f"name a model; at most {_FOLLOWED_MAX}",
        )
    printing = threading.Lock()

    def follow(source: LogSource) -> None:
        def tell(words: str) -> None:
            with printing:
                click.echo(f"{source.node}: {one_line(words)}", err=True)

        try:
            for line in followed(partial(_stream, options, source), tail, tell, threading.Event().wait):
                text = _as_text(source, line, alone=len(sources) == 1)
                with printing:
                    click.echo(json.dumps(as_json_line(source, line)) if options.as_json else text)
        except RemudaError as error:
            tell(error.message)
        except BrokenPipeError:
            pass  # The main thread notices it too, and ends the command.

    threads = [threading.Thread(target=follow, args=(source,), daemon=True) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # In slices: a join without end cannot be interrupted everywhere.
            thread.join(timeout=_CHECK_EVERY_S)
            raise_if_reader_gone(sys.stdout)


@contextmanager
def _stream(options: ClientOptions, source: LogSource, tail: int) -> Iterator[Iterator[bytes]]:
    """With a client of its own: a frontend that was started again may have another address and key."""
    path = ("api", "nodes", source.node_id, "backend-logs", source.name)
    query = {"follow": "true", "tail": str(tail)}
    with (
        connect(options, WAIT_S) as client,
        client.stream(*path, query=query, headers={}, quiet_s=_QUIET_S) as chunks,
    ):
        yield chunks


def _as_text(source: LogSource, line: "LogLine", *, alone: bool) -> str:
    where = "" if alone else f"{source.node} {source.name}: "
    return f"{one_line(where)}{one_line(line.text)}"


def as_json_line(source: LogSource, line: "LogLine") -> dict[str, str | None]:
    return {
        "node": source.node,
        "name": source.name,
        "timestamp": None if line.approximate else line.timestamp,
        "stream": line.stream,
        "text": line.text,
    }
