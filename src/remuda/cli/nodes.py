"""`remuda nodes`: see the machines of the fleet and decide about them."""

import json
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from remuda.cli.commands import Asked, ListByDefault, client_command, connect, examples
from remuda.cli.naming import pick
from remuda.cli.plain import one_line
from remuda.core.clock import SystemClock
from remuda.core.errors import Invalid, NotFound, RemudaError
from remuda.core.near_names import did_you_mean


def complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Node names, where a frontend answers; none otherwise."""
    given = ctx.params.get
    try:
        with connect(Asked(given("url"), given("api_key"), given("ca"), given("data_dir"))) as client:
            nodes = client.nodes()[1]
    except RemudaError:
        return []
    return [CompletionItem(node.name, help=node.status) for node in nodes if node.name.startswith(incomplete)]


names_argument = click.argument(
    "names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_names
)
name_argument = click.argument("name", shell_complete=complete_names)


@click.group(
    "nodes",
    cls=ListByDefault,
    short_help="See the machines of the fleet and decide about them.",
    epilog=examples(
        "remuda nodes", "remuda nodes approve attic", "remuda nodes label attic room=cellar gpu-"
    ),
)
def group() -> None:
    """The machines of the fleet. Without a verb: list them.

    A node is named by its name, its id, or the beginning of its id.
    """


@group.command("list", epilog=examples("remuda nodes", "remuda nodes list --json"))
@client_command
def list_nodes(asked: Asked) -> None:
    """All nodes: status, memory, disk, and why one takes no work."""
    with connect(asked) as client:
        answer, nodes = client.nodes()
    if asked.as_json:
        click.echo(json.dumps({"nodes": json.loads(answer.body)}))
        return
    from remuda.cli.node_tables import node_list
    from remuda.cli.render import console, show

    output = console()
    show(output, node_list(nodes, answer.date or SystemClock().now(), output))


@group.command("show", epilog=examples("remuda nodes show attic", "remuda nodes show 3f2a --json"))
@name_argument
@client_command
def show_node(asked: Asked, name: str) -> None:
    """All that is known of one node, its labels and its history."""
    from remuda.wire.admin import History

    with connect(asked) as client:
        _, nodes = client.nodes()
        known = pick("node", nodes, name)
        answer = client.get("api", "nodes", known.id)
        history = client.get("api", "history", node=known.name)
    if asked.as_json:
        click.echo(json.dumps({"node": json.loads(answer.body), "history": json.loads(history.body)}))
        return
    from remuda.cli.node_tables import node_page
    from remuda.cli.render import console, show
    from remuda.wire.nodes import NodeView

    output, now = console(), answer.date or SystemClock().now()
    show(output, node_page(answer.read(NodeView), history.read(History).root, now, output))


@group.command("approve", epilog=examples("remuda nodes approve attic", "remuda nodes approve a b c"))
@names_argument
@client_command
def approve_nodes(asked: Asked, names: tuple[str, ...]) -> None:
    """Let nodes in that wait for approval."""
    _each(asked, names, "POST", "approve", said="approved")


@group.command("drain", epilog=examples("remuda nodes drain attic"))
@names_argument
@client_command
def drain_nodes(asked: Asked, names: tuple[str, ...]) -> None:
    """Give nodes no new work until they are resumed.

    It holds when their workers restart.
    """
    _each(asked, names, "POST", "drain", said="draining")


@group.command("resume", epilog=examples("remuda nodes resume attic"))
@names_argument
@client_command
def resume_nodes(asked: Asked, names: tuple[str, ...]) -> None:
    """Take work again."""
    _each(asked, names, "POST", "resume", said="resumed")


@group.command("remove", epilog=examples("remuda nodes remove attic", "remuda nodes remove attic --yes"))
@click.option("--yes", is_flag=True, help="Do not ask.")
@names_argument
@client_command
def remove_nodes(asked: Asked, names: tuple[str, ...], yes: bool) -> None:
    """Stop these nodes' workers and forget the nodes. Who comes back needs a fresh approval."""
    if not yes:
        click.confirm(f"Remove {', '.join(names)} from the fleet?", abort=True, err=True)
    _each(asked, names, "DELETE", said="removed")


@group.command(
    "label",
    epilog=examples("remuda nodes label attic room=cellar tier=slow", "remuda nodes label attic room-"),
)
@name_argument
@click.argument("changes", metavar="KEY=VALUE|KEY-...", nargs=-1, required=True)
@client_command
def label_node(asked: Asked, name: str, changes: tuple[str, ...]) -> None:
    """Set labels of a node (KEY=VALUE) and take others off (KEY-)."""
    wanted, unwanted = label_changes(changes)
    with connect(asked) as client:
        _, nodes = client.nodes()
        node = pick("node", nodes, name)
        for key in unwanted:
            if key not in node.labels:
                raise NotFound(
                    f"node {node.name} has no label {key!r}",
                    hint=did_you_mean(key, node.labels, "`remuda nodes show` lists its labels"),
                )
        for key in unwanted:  # Before any is set: these may be refused.
            client.call("DELETE", "api", "nodes", node.id, "labels", key)
        if wanted:
            client.call("PATCH", "api", "nodes", node.id, "labels", body=wanted)
        answer = client.get("api", "nodes", node.id, "labels")
    if asked.as_json:
        click.echo(json.dumps({"node": node.name, "labels": json.loads(answer.body)}))
        return
    labels: dict[str, str] = json.loads(answer.body)
    shown = ", ".join(f"{key}={value}" for key, value in labels.items())
    click.echo(one_line(f"{node.name}: {shown or 'no labels'}"))


def label_changes(changes: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The labels to set and the keys to take off."""
    wanted: dict[str, str] = {}
    unwanted: list[str] = []
    for change in changes:
        key, equals, value = change.partition("=")
        if equals and key:
            wanted[key] = value
        elif not equals and len(key) > 1 and key.endswith("-"):
            unwanted.append(key[:-1])
        else:
            raise Invalid(f"{change!r} is no label", hint="write KEY=VALUE to set one, KEY- to take it off")
    return wanted, unwanted


def _each(asked: Asked, names: Sequence[str], method: str, *verb: str, said: str) -> None:
    """The same for each named node. All names are looked up first: a slip of the pen changes nothing."""
    done: list[dict[str, str]] = []
    with connect(asked) as client:
        _, nodes = client.nodes()
        for node in [pick("node", nodes, name) for name in names]:
            client.call(method, "api", "nodes", node.id, *verb)
            done.append({"id": node.id, "name": node.name, "outcome": said})
            if not asked.as_json:
                click.echo(one_line(f"{node.name}: {said}"))
    if asked.as_json:
        click.echo(json.dumps({"nodes": done}))
