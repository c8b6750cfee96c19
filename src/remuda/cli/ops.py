"""`remuda ops`: list operations; pause, cancel, retry and dismiss them."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from remuda.cli.commands import ListByDefault, WholeNumber, client_command, connect, examples, span_of
from remuda.cli.exits import Exit
from remuda.cli.invocation import ClientOptions
from remuda.cli.nodes import complete_names
from remuda.cli.output import one_line
from remuda.cli.suggestions import pick
from remuda.core.clock import SystemClock
from remuda.core.errors import Invalid, NotFound, RemudaError
from remuda.core.hints import did_you_mean

if TYPE_CHECKING:
    from remuda.cli.client import AdminClient
    from remuda.wire.operations import OpView

_ALIKE_MAX = 1000
_KINDS = ("install", "upgrade", "remove", "load", "unload", "install_model", "remove_model")
_ID_CHARS = 36
_SHOWN_MAX = 5


def complete_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of operations, where a frontend answers; none otherwise."""
    from remuda.cli.ops_state import short_id, title

    given = ctx.params.get
    try:
        with connect(ClientOptions(given("url"), given("api_key"), given("ca"), given("data_dir"))) as client:
            ops = beginning_with(client, incomplete)
    except RemudaError:
        return []
    return [CompletionItem(short_id(op.id), help=f"{title(op)}: {op.status}") for op in ops]


id_argument = click.argument("id", shell_complete=complete_ids)
ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)


@click.group(
    "ops",
    cls=ListByDefault,
    short_help="List, watch, cancel and retry operations.",
    epilog=examples("remuda ops", "remuda ops watch", "remuda ops show 3f2a", "remuda ops retry 3f2a"),
)
def group() -> None:
    """Operations: installs, upgrades and removals of backends; installs, removals, loads and unloads of
    models.

    Without a command: list them.

    Give an operation by its id, or the beginning of it.
    """


limit_option = click.option(
    "--limit", type=WholeNumber(1), default=50, show_default=True, help="List at most this many."
)
all_option = click.option("--all", "everything", is_flag=True, help="List all of them.")


@group.command(
    "list",
    epilog=examples(
        "remuda ops",
        "remuda ops list --state live --node attic",
        "remuda ops list --kind load --model smollm2 --all",
    ),
)
@click.option(
    "--state",
    type=click.Choice(["live", "finished", "failed", "all"]),
    default="all",
    show_default=True,
    help="Which to list.",
)
@click.option("--kind", type=click.Choice(_KINDS), help="Only those of this kind.")
@click.option("--backend", metavar="NAME", default="", help="Only those of this backend.")
@click.option("--model", metavar="NAME", default="", help="Only those of this model.")
@click.option("--node", metavar="NAME", default="", shell_complete=complete_names, help="Only those on it.")
@limit_option
@all_option
@client_command
def list_ops(options: ClientOptions, /, limit: int, everything: bool, **only: str | None) -> None:
    """List operations, newest first: progress, and who asked for each. Dismissed ones are in `history`."""
    _list(options, {name: value for name, value in only.items() if value}, None if everything else limit)


@group.command("history", epilog=examples("remuda ops history", "remuda ops history --clear"))
@click.option("--clear", is_flag=True, help="Clear all finished operations, from the history too.")
@limit_option
@all_option
@client_command
def show_history(options: ClientOptions, clear: bool, limit: int, everything: bool) -> None:
    """List finished operations, dismissed ones included."""
    if clear:
        with connect(options) as client:
            answer = client.call("DELETE", "api", "operations", "history")
        click.echo(answer.body if options.as_json else "finished operations cleared")
        return
    _list(options, {"state": "finished", "dismissed": "true"}, None if everything else limit)


def _list(options: ClientOptions, query: Mapping[str, str], limit: int | None) -> None:
    from remuda.cli.client import read_pages
    from remuda.wire.codec import encode

    with connect(options) as client:
        listed = read_pages(client, query, limit)
        if not listed.views.operations:
            check_names(client, query)
    if options.as_json:
        click.echo(encode(listed.views))
        return
    from remuda.cli.ops_tables import op_table
    from remuda.cli.render import console, show

    output = console()
    show(output, op_table(listed.views.operations, listed.at or SystemClock().now(), output))
    if listed.views.next is not None:
        click.echo(f"only the newest {limit} are shown; use --limit or --all for more", err=True)


@group.command(
    "show",
    short_help="Show one operation: each node's state, and its problems.",
    epilog=examples("remuda ops show 3f2a", "remuda ops show 3f2a --json"),
)
@id_argument
@client_command
def show_op(options: ClientOptions, id: str) -> None:
    """Show one operation: each node's state, attempts, problems, and what to do about them."""
    from remuda.wire.operations import OpView

    with connect(options) as client:
        answer = client.get("api", "ops", whole_id(client, id))
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.cli.ops_tables import op_page
    from remuda.cli.render import console, show

    output = console()
    show(output, op_page(answer.read(OpView), answer.date or SystemClock().now(), output))


@group.command(
    "watch",
    short_help="Follow one operation, or all of them until Ctrl-C.",
    epilog=examples("remuda ops watch", "remuda ops watch 3f2a", "remuda ops watch --json"),
)
@click.argument("id", required=False, shell_complete=complete_ids)
@click.option("--timeout", metavar="SPAN", callback=span_of, help="Watch this long, such as 10m.")
@client_command
@click.pass_context
def watch_ops(ctx: click.Context, options: ClientOptions, id: str | None, timeout: timedelta | None) -> None:
    """Follow one operation until it finishes, or all of them until Ctrl-C. Reconnects if the frontend
    restarts. With --json: one line for each change."""
    if id is None:
        ctx.exit(_watch_all(options, timeout))
    from remuda.cli.ops_wait import Waiting, wait_and_report
    from remuda.wire.operations import OpView

    with connect(options) as client:
        op = client.get("api", "ops", whole_id(client, id)).read(OpView)
    ctx.exit(wait_and_report(options, [op], Waiting(within=timeout, watch=True)))


def _watch_all(options: ClientOptions, timeout: timedelta | None) -> Exit:
    """Ctrl-C is how a person ends it, and no error."""
    from remuda.cli.ops_watch import displaying, follow

    try:
        with displaying(as_json=options.as_json, watch=True, file=sys.stdout, all_ops=True) as display:
            for _ in follow(options, None, timeout, display):
                pass
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return Exit.DONE


@group.command("cancel", epilog=examples("remuda ops cancel 3f2a"))
@ids_argument
@client_command
def cancel_ops(options: ClientOptions, ids: tuple[str, ...]) -> None:
    """Cancel operations on every node. Workers keep what they have downloaded so far."""
    _each(options, ids, "cancel")


@group.command("pause", epilog=examples("remuda ops pause 3f2a"))
@ids_argument
@client_command
def pause_ops(options: ClientOptions, ids: tuple[str, ...]) -> None:
    """Pause operations until they are resumed."""
    _each(options, ids, "pause")


@group.command("resume", epilog=examples("remuda ops resume 3f2a"))
@ids_argument
@client_command
def resume_ops(options: ClientOptions, ids: tuple[str, ...]) -> None:
    """Continue paused operations."""
    _each(options, ids, "resume")


@group.command("dismiss", epilog=examples("remuda ops dismiss 3f2a"))
@ids_argument
@client_command
def dismiss_ops(options: ClientOptions, ids: tuple[str, ...]) -> None:
    """Dismiss finished operations. `history` still shows them."""
    _each(options, ids, "dismiss")


@group.command(
    "retry",
    short_help="Retry an operation on nodes where it failed.",
    epilog=examples("remuda ops retry 3f2a", "remuda ops retry 3f2a --node attic"),
)
@id_argument
@click.option(
    "--node", "nodes", metavar="NAME", multiple=True, shell_complete=complete_names, help="Only this one."
)
@client_command
def retry_op(options: ClientOptions, id: str, nodes: tuple[str, ...]) -> None:
    """Retry an operation's failed nodes now, or those waiting to retry: all, or those named."""
    _each(options, [id], "retry", body={"nodes": nodes})


def _each(options: ClientOptions, ids: Sequence[str], verb: str, body: object = None) -> None:
    """The same for each. All ids are looked up first: a slip of the pen changes nothing."""
    from remuda.cli.ops_state import short_id, title
    from remuda.wire.operations import OpView

    documents: list[object] = []
    with connect(options) as client:
        for id in [whole_id(client, one) for one in ids]:
            answer = client.call("POST", "api", "ops", id, verb, body=body)
            documents.append(json.loads(answer.body))
            if not options.as_json:
                op = answer.read(OpView)
                state = "dismissed" if op.dismissed else f"{op.status}: {op.message}"
                click.echo(one_line(f"{short_id(op.id)}: {title(op)}: {state}"))
    if options.as_json:
        click.echo(json.dumps({"operations": documents}))


def check_names(client: "AdminClient", query: Mapping[str, str]) -> None:
    """NotFound for a node, model or backend that does not exist, rather than a list that is merely empty.
    What was removed has operations, and does not come here."""
    from remuda.wire.operations import BackendItems
    from remuda.wire.serving import ModelItems

    if node := query.get("node"):
        pick("node", client.nodes()[1], node)
    if model := query.get("model"):
        models = [item.name for item in client.get("api", "models").read(ModelItems).models]
        _check_name("model", models, model)
    if backend := query.get("backend"):
        paths = (("backends",), ("backends", "available"))
        items = [item for path in paths for item in client.get(*path).read(BackendItems).root]
        _check_name("backend", sorted({item.name for item in items}), backend)


def _check_name(kind: str, names: Sequence[str], wanted: str) -> None:
    if wanted not in names:
        known = f"there are: {', '.join(names[:_SHOWN_MAX])}" if names else f"there are no {kind}s"
        raise NotFound(f"there is no {kind} {wanted!r}", hint=did_you_mean(wanted, names, known))


def beginning_with(client: "AdminClient", id: str) -> "Sequence[OpView]":
    """The latest operations whose ids begin so, dismissed ones included."""
    from remuda.cli.client import read_pages

    listed = read_pages(client, {"dismissed": "true", "id": id.lower()}, _ALIKE_MAX).views.operations
    return [op for op in listed if op.id.startswith(id.lower())]  # Older frontends list all.


def whole_id(client: "AdminClient", wanted: str) -> str:
    """The id that begins so. NotFound when there is none, Invalid when there are several."""
    from remuda.cli.ops_state import title

    if len(wanted) >= _ID_CHARS:
        return wanted
    found = beginning_with(client, wanted) if wanted else []
    if not found:
        raise NotFound(f"there is no operation {wanted!r}", hint="see `remuda ops history`")
    if len(found) > 1:
        which = ", ".join(f"{op.id} ({title(op)})" for op in found[:_SHOWN_MAX])
        raise Invalid(f"{wanted!r} matches {len(found)} ids", hint=f"say which: {which}")
    return found[0].id
