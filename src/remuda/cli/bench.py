"""`remuda bench`: how fast models answer, measured through the frontend, and what was measured before."""

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from remuda.cli.commands import WholeNumber, client_command, connect, examples
from remuda.cli.exits import Exit
from remuda.cli.invocation import ClientOptions
from remuda.cli.model_arguments import complete_models, configured_models, not_there
from remuda.cli.output import one_line
from remuda.core.errors import Invalid, NotFound, PeerFailed, RemudaError
from remuda.core.hints import pasted

if TYPE_CHECKING:
    from remuda.cli.bench_load import ChatLoad, ChatShape
    from remuda.cli.render import Column
    from remuda.wire.benchmarks import BenchmarkView, MeasuredSpeed

_CLEAR_LINE: Final = "\r\x1b[K"
_STREAMS: Final = (1, 4)
_STREAMS_MAX: Final = 256
_NOTHING_KEPT: Final = "nothing was measured yet; measure a model with: remuda bench MODEL"


@click.command(
    "bench",
    short_help="Measure how fast models answer.",
    epilog=examples(
        "remuda bench qwen3-8b",
        "remuda bench qwen3-8b --streams 1 --streams 16 --tokens 128",
        "remuda bench qwen3-8b qwen3-4b --node spark --node attic",
        "remuda bench",
    ),
)
@click.argument("models", metavar="[MODEL]...", nargs=-1, shell_complete=complete_models)
@click.option("--node", "nodes", multiple=True, metavar="NODE", help="Only this node; may be repeated.")
@click.option(
    "--streams",
    multiple=True,
    type=WholeNumber(1, _STREAMS_MAX),
    help="So many requests at once; may be repeated. Default: 1, then 4.",
)
@click.option(
    "--prompt-tokens",
    type=WholeNumber(1),
    default=256,
    show_default=True,
    help="Length of each prompt, about.",
)
@click.option(
    "--tokens", type=WholeNumber(2), default=64, show_default=True, help="Length of each answer at most."
)
@click.option(
    "--rounds", type=WholeNumber(1), default=2, show_default=True, help="How often each is measured."
)
@click.option("--no-keep", is_flag=True, help="Do not keep the results.")
@client_command
def command(
    options: ClientOptions,
    models: tuple[str, ...],
    nodes: tuple[str, ...],
    streams: tuple[int, ...],
    prompt_tokens: int,
    tokens: int,
    rounds: int,
    no_keep: bool,
) -> None:
    """Measure how fast models answer on each node that has them loaded: time to the first token, tokens per
    second with so many requests at once, and how fast prompts are read.

    A model that is loaded nowhere is loaded first. Times are those of a client, with the network in them. The
    results are kept by the fleet; without MODEL, what is kept is listed. Models of adopted servers are not
    measured, and one that cannot be measured does not keep the others from it.
    """
    if not models:
        if nodes or streams:
            raise click.UsageError("name the models to measure")
        _list_kept(options)
        return
    from remuda.cli.bench_load import ChatShape

    shape = ChatShape(prompt_tokens, tokens)
    found, failures = dict[str, Sequence["MeasuredSpeed"]](), dict[str, RemudaError]()
    for model in dict.fromkeys(models):
        try:
            found[model] = _measured(options, model, nodes, streams or _STREAMS, shape, rounds)
            if not no_keep:
                _keep(options, model, found[model])
        except RemudaError as error:  # The others are measured all the same.
            failures[model] = error
    if found or options.as_json:
        _show(options, found, failures)
    _raise_first(failures)
    if any(speed.failed for speeds in found.values() for speed in speeds):
        raise click.exceptions.Exit(Exit.UNAVAILABLE)


def _raise_first(failures: Mapping[str, RemudaError]) -> None:
    """The end of the command; the other models are named before."""
    first, *others = failures or [""]
    for model in others:
        click.echo(one_line(f"{model} was not measured: {failures[model].public_text}"), err=True)
    if first:
        raise failures[first]


def _measured(
    options: ClientOptions,
    model: str,
    nodes: Sequence[str],
    streams: Sequence[int],
    shape: "ChatShape",
    rounds: int,
) -> list["MeasuredSpeed"]:
    from remuda.cli.bench_load import ChatLoad, ChatShape, speeds_on
    from remuda.core.clock import SystemClock
    from remuda.core.entropy import SystemEntropy

    _refuse_of_server(options, model)
    load = ChatLoad(model, lambda: connect(options), SystemClock(), SystemEntropy())
    found = list["MeasuredSpeed"]()
    with connect(options) as client:
        own_names = {one.alias or one.name for one in configured_models(client) if one.name == model}
    try:
        _say(f"{model}: waiting until it answers")
        for node in ["", *nodes]:  # The first one loads the model where it is loaded nowhere.
            _require_answer(options, load, model, ChatShape(1, 1), node)
        for node in nodes or _nodes_with(options, own_names or {model}):
            found += speeds_on(load, node, streams, shape, rounds, lambda what: _say(f"{model}: {what}"))
    finally:
        _say("")
    return found


def _refuse_of_server(options: ClientOptions, model: str) -> None:
    """Before anything is asked of a server, which may take money for it."""
    from remuda.wire.servers import ServerViews

    name, _, there = model.partition("/")
    if not there:
        return
    with connect(options) as client:
        if any(one.name == model for one in configured_models(client)):
            return
        try:
            servers = client.get("api", "servers").read(ServerViews).servers
        except RemudaError:  # Keys of users may not look at servers.
            return
    if any(server.name == name for server in servers):
        raise Invalid(
            f"{model} is a model of the server {name}, which is no node: only models on nodes are measured",
            hint=f"remuda chat {pasted(model)} asks it, and remuda usage --by node shows what it used",
        )


def _require_answer(
    options: ClientOptions, load: "ChatLoad", model: str, shape: "ChatShape", node: str
) -> None:
    """What it takes is not measured: a load may be part of it."""
    error = load.round(shape, 1, node).chats[0].error
    if isinstance(error, NotFound):
        raise not_there(options, model, error) from None
    if error is not None:
        raise error


def _nodes_with(options: ClientOptions, own_names: Collection[str]) -> list[str]:
    from remuda.wire.serving import ReplicaViews

    with connect(options) as client:
        replicas = client.get("api", "replicas").read(ReplicaViews).replicas
    found = sorted({one.node for one in replicas if one.model in own_names and one.state == "loaded"})
    if not found:
        raise PeerFailed(
            f"{', '.join(own_names)} has answered, and no node has it loaded now",
            hint="what servers answer for a model is not measured; where a node answered, try again",
        )
    return found


def _say(what: str) -> None:
    """On a terminal, in a line that the next one replaces."""
    if sys.stderr.isatty():
        click.echo(_CLEAR_LINE + one_line(what), nl=False, err=True)


def _keep(options: ClientOptions, model: str, speeds: Sequence["MeasuredSpeed"]) -> None:
    body = {"model": model, "results": [speed.model_dump(mode="json") for speed in speeds]}
    with connect(options) as client:
        client.call("POST", "api", "benchmarks", body=body)


def _show(
    options: ClientOptions,
    found: Mapping[str, Sequence["MeasuredSpeed"]],
    failures: Mapping[str, RemudaError],
) -> None:
    if options.as_json:
        listed = [
            {"model": model, **speed.model_dump(mode="json")}
            for model, speeds in found.items()
            for speed in speeds
        ]
        reasons = [{"model": model, "reason": error.public_text} for model, error in failures.items()]
        click.echo(json.dumps({"benchmarks": listed} | ({"not_measured": reasons} if reasons else {})))
        return
    from remuda.cli.render import console, fitting, show

    speeds = [speed for several in found.values() for speed in several]
    models = [model for model, several in found.items() for _ in several]
    output = console()
    show(output, fitting(_columns(models, speeds), output))
    if failed := sum(speed.failed for speed in speeds):
        total = sum(speed.requests for speed in speeds)
        click.echo(f"{failed} of {total} requests failed; speeds are those of the others", err=True)


def _list_kept(options: ClientOptions) -> None:
    with connect(options) as client:
        answer = client.get("api", "benchmarks")
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.cli.render import Column, console, fitting, local, show
    from remuda.wire.benchmarks import BenchmarkViews

    kept: Sequence[BenchmarkView] = answer.read(BenchmarkViews).benchmarks
    if not kept:
        click.echo(_NOTHING_KEPT)
        return
    output = console()
    columns = [
        *_columns([one.model for one in kept], kept),
        Column("BACKEND", [one.backend for one in kept], needed=4),
        Column("MEASURED", [local(one.at) for one in kept], needed=1),
    ]
    show(output, fitting(columns, output))


def _columns(models: Sequence[str], speeds: Sequence["MeasuredSpeed"]) -> list["Column"]:
    from remuda.cli.render import UNKNOWN, Column

    def column(
        title: str, cell: Callable[["MeasuredSpeed"], str], needed: int = 0, *, right: bool = True
    ) -> Column:
        return Column(title, [cell(one) for one in speeds], needed, right)

    def figure(value: float, digits: int = 1) -> str:
        return f"{value:,.{digits}f}" if value else UNKNOWN

    failed = [column("FAILED", lambda one: str(one.failed))] if any(one.failed for one in speeds) else []
    return [
        Column("MODEL", models),
        column("NODE", lambda one: one.node or "any", right=False),
        column("AT ONCE", lambda one: str(one.streams)),
        column("FIRST TOKEN", lambda one: f"{one.first_token_ms:,.0f} ms" if one.first_token_ms else UNKNOWN),
        column(
            "OF 95 %",
            lambda one: f"{one.first_token_p95_ms:,.0f} ms" if one.first_token_p95_ms else UNKNOWN,
            needed=3,
        ),
        column("TOK/S", lambda one: figure(one.tokens_per_s)),
        column("EACH", lambda one: figure(one.tokens_per_s / one.streams), needed=2),
        column("PROMPT TOK/S", lambda one: figure(one.prompt_tokens_per_s, 0)),
        column("PROMPT", lambda one: str(one.prompt_tokens or UNKNOWN), needed=5),
        column("ANSWER", lambda one: str(one.completion_tokens or UNKNOWN), needed=5),
        *failed,
    ]
