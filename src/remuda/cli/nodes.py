"""`remuda nodes`: list the machines of the fleet; approve, drain, label and remove them."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from remuda.cli.commands import ListByDefault, client_command, confirm, connect, examples
from remuda.cli.invocation import ClientOptions
from remuda.cli.output import one_line
from remuda.cli.suggestions import pick
from remuda.core.clock import SystemClock
from remuda.core.errors import Invalid, NotFound, RemudaError
from remuda.core.hints import did_you_mean

if TYPE_CHECKING:
    from remuda.wire.disk import FreedDisk
    from remuda.wire.nodes import NodeView
    from remuda.wire.serving import ReplicaView


def complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Node names, where a frontend answers; none otherwise."""
    given = ctx.params.get
    try:
        with connect(ClientOptions(given("url"), given("api_key"), given("ca"), given("data_dir"))) as client:
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
    short_help="List, approve, drain, label and remove machines; free their disks.",
    epilog=examples(
        "remuda nodes", "remuda nodes approve attic", "remuda nodes label attic room=cellar gpu-"
    ),
)
def group() -> None:
    """The machines of the fleet. Without a command: list them.

    Give a node by its name, its id, or the beginning of its id.
    """


@group.command("list", epilog=examples("remuda nodes", "remuda nodes list --json"))
@client_command
def list_nodes(options: ClientOptions) -> None:
    """List nodes: status, memory, disk, and why a node gets no work."""
    with connect(options) as client:
        answer, nodes = client.nodes()
    if options.as_json:
        click.echo(json.dumps({"nodes": json.loads(answer.body)}))
        return
    from remuda.cli.node_tables import node_list
    from remuda.cli.render import console, show

    output = console()
    show(output, node_list(nodes, answer.date or SystemClock().now(), output))


@group.command("show", epilog=examples("remuda nodes show attic", "remuda nodes show 3f2a --json"))
@name_argument
@client_command
def show_node(options: ClientOptions, name: str) -> None:
    """Show everything known about one node, with its labels and history."""
    from remuda.wire.admin import History

    with connect(options) as client:
        _, nodes = client.nodes()
        known = pick("node", nodes, name)
        answer = client.get("api", "nodes", known.id)
        history = client.get("api", "history", node=known.name)
    if options.as_json:
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
def approve_nodes(options: ClientOptions, names: tuple[str, ...]) -> None:
    """Approve nodes that wait for it.

    Where another machine wants the name of a node that is gone, approval lets it replace that node; `remuda
    nodes show` says where it comes from.
    """
    _each(options, names, "POST", "approve", said="approved", id_of=_waiting)


@group.command(
    "invite",
    short_help="Print a registration token for one LocalAI worker.",
    epilog=examples("remuda nodes invite attic", "remuda nodes invite attic --withdraw"),
)
@click.argument("name")
@click.option("--withdraw", is_flag=True, help="Withdraw the invite: its node loses access.")
@client_command
def invite_node(options: ClientOptions, name: str, withdraw: bool) -> None:
    """Print a registration token for one machine, valid under this name only.

    For LocalAI workers, which have no other way to prove who they are. It counts as approval and stays valid,
    as they need it at every start. Remuda workers do not need it.
    """
    from remuda.wire.nodes import InviteReply

    with connect(options) as client:
        if withdraw:
            answer = client.call("DELETE", "api", "nodes", "invites", name)
        else:
            answer = client.call("POST", "api", "nodes", "invites", body={"name": name})
    if options.as_json:
        click.echo(answer.body)
    elif withdraw:
        click.echo(one_line(f"{name}: invite withdrawn"))
    else:
        click.echo(f"LOCALAI_REGISTRATION_TOKEN={answer.read(InviteReply).registration_token}")
        click.echo(one_line(f"For the worker with LOCALAI_NODE_NAME={name} only."), err=True)


@group.command(
    "drain",
    short_help="Give nodes no new work until they are resumed.",
    epilog=examples("remuda nodes drain attic"),
)
@names_argument
@client_command
def drain_nodes(options: ClientOptions, names: tuple[str, ...]) -> None:
    """Give nodes no new work until they are resumed, even if their workers restart."""
    _each(options, names, "POST", "drain", said="draining")


@group.command("resume", epilog=examples("remuda nodes resume attic"))
@names_argument
@client_command
def resume_nodes(options: ClientOptions, names: tuple[str, ...]) -> None:
    """Let drained nodes take work again."""
    _each(options, names, "POST", "resume", said="resumed", nothing=_was_not_drained)


@group.command(
    "disk",
    short_help="Show a node's model files and what they may come to.",
    epilog=examples(
        "remuda nodes disk attic", "remuda nodes disk attic --budget 200GB", "remuda nodes disk attic --json"
    ),
)
@click.option(
    "--budget", metavar="SIZE", help="Limit model files fetched there: 200GB or 50%; none: no limit."
)
@click.option("--reset-budget", is_flag=True, help="Go back to the budget of the worker's own settings.")
@name_argument
@client_command
def node_disk(options: ClientOptions, name: str, budget: str | None, reset_budget: bool) -> None:
    """Show the model files on a node: which models need them, when a load needed them last, and why each of
    them stays when room is needed. Only files that the fleet has brought there go by themselves."""
    from remuda.wire.disk import NodeDiskView

    if budget is not None and reset_budget:
        raise click.UsageError("--budget and --reset-budget exclude each other.")
    with connect(options) as client:
        known = pick("node", client.nodes()[1], name)
        path = ("api", "nodes", known.id, "model-files-budget")
        if budget is not None:
            client.call("PUT", *path, body={"value": "" if budget == "none" else budget})
        elif reset_budget:
            client.call("DELETE", *path)
        answer = client.get("api", "nodes", known.id, "model-files")
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.cli.node_tables import disk_page
    from remuda.cli.render import console, show

    output = console()
    show(output, disk_page(answer.read(NodeDiskView), answer.date or SystemClock().now(), output))


@group.command(
    "free",
    short_help="Remove model files from a node that may go.",
    epilog=examples(
        "remuda nodes free attic --dry-run", "remuda nodes free attic --size 20GB", "remuda nodes free attic"
    ),
)
@click.option("--size", metavar="SIZE", help="Free so much, such as 20GB. Default: what is over the budget.")
@click.option("--dry-run", is_flag=True, help="Show what would go, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@name_argument
@client_command
def free_node(options: ClientOptions, name: str, size: str | None, dry_run: bool, yes: bool) -> None:
    """Remove model files that the fleet has brought to a node, the model that was not used longest first.

    What is loaded, pinned (`pinned: true` in the model's configuration), a person's, or the only copy in the
    fleet stays. What goes is copied there again when a load needs it. Half-copied files that no load is
    copying now go in any case, and before the others.
    """
    from remuda.wire.disk import FreedDisk
    from remuda.wire.sizes import parse_size

    wanted = None if size is None else parse_size(size)
    if size is not None and not wanted:
        raise Invalid(f"{size!r} is not a size", hint="write it like 20GB or 512 MiB")
    with connect(options) as client:
        known = pick("node", client.nodes()[1], name)
        path = ("api", "nodes", known.id, "model-files", "free")
        body = {} if wanted is None else {"bytes": wanted}
        answer = client.call("POST", *path, body={**body, "dry_run": True})
        plan = answer.read(FreedDisk)
        if plan.models and not dry_run and not yes and not options.as_json:
            for line in freed_lines(plan):
                click.echo(one_line(line), err=True)
            confirm(f"Remove these files from {one_line(known.name)}?")
        if not dry_run:
            answer = client.call("POST", *path, body=body)
    if options.as_json:
        click.echo(answer.body)
        return
    for line in freed_lines(answer.read(FreedDisk)):
        click.echo(one_line(line))


def freed_lines(freed: "FreedDisk") -> list[str]:
    """What goes, would go or has gone, a line for each model."""
    from remuda.wire.sizes import install_size

    if freed.refused:
        return [f"{freed.node}: {freed.refused}"]
    if not freed.models:
        return [f"{freed.node}: nothing has to go"]
    verb = "would remove" if freed.dry_run else "removed"
    kept = {one.path for one in freed.kept}
    lines = [
        f"{verb} {one.name or ', '.join(one.files)} ({install_size(one.size)})"
        for one in freed.models
        if not kept.issuperset(one.files)
    ]
    lines += [f"kept {one.path}: {one.why}" for one in freed.kept]
    return lines if freed.dry_run else [*lines, f"{freed.node}: {install_size(freed.freed_bytes)} freed"]


@group.command("remove", epilog=examples("remuda nodes remove attic", "remuda nodes remove attic --yes"))
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@names_argument
@client_command
def remove_nodes(options: ClientOptions, names: tuple[str, ...], yes: bool) -> None:
    """Stop these nodes' workers and remove the nodes. A machine asks to come back when its worker is started
    again (`remuda worker`); it then needs approval, unless the frontend approves nodes automatically."""
    if not yes:
        from remuda.wire.serving import ReplicaViews

        with connect(options) as client:
            _, nodes = client.nodes()
            found = [pick("node", nodes, name) for name in names]
            replicas = client.get("api", "replicas").read(ReplicaViews).replicas
        for line in models_served(found, replicas):
            click.echo(one_line(line), err=True)
        confirm(f"Remove {', '.join(one_line(node.name) for node in found)} from the fleet?")
    _each(options, names, "DELETE", said="removed")


@group.command(
    "label",
    epilog=examples("remuda nodes label attic room=cellar tier=slow", "remuda nodes label attic room-"),
)
@name_argument
@click.argument("changes", metavar="KEY=VALUE|KEY-...", nargs=-1, required=True)
@client_command
def label_node(options: ClientOptions, name: str, changes: tuple[str, ...]) -> None:
    """Set labels of a node (KEY=VALUE) or remove them (KEY-)."""
    wanted, unwanted = label_changes(changes)
    with connect(options) as client:
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
    if options.as_json:
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
            raise Invalid(
                f"{change!r} is not a label", hint="write KEY=VALUE to set a label, KEY- to remove it"
            )
    return wanted, unwanted


def models_served(nodes: "Sequence[NodeView]", replicas: "Sequence[ReplicaView]") -> list[str]:
    """A line for each node that has models."""
    models = {node.id: sorted({row.model for row in replicas if row.node_id == node.id}) for node in nodes}
    return [f"{node.name} serves {', '.join(models[node.id])}" for node in nodes if models[node.id]]


def _waiting(node: "NodeView") -> str:
    """Whom an approval of this node means: the machine that wants to take its place, if there is one."""
    claim = node.remuda.claim if node.remuda is not None else None
    return node.id if claim is None else claim.id


def _own_id(node: "NodeView") -> str:
    return node.id


def _was_not_drained(node: "NodeView") -> str:
    return "it was not drained" if node.remuda is not None and not node.remuda.drained else ""


def _each(
    options: ClientOptions,
    names: Sequence[str],
    method: str,
    *verb: str,
    said: str,
    id_of: "Callable[[NodeView], str]" = _own_id,
    nothing: "Callable[[NodeView], str]" = lambda _: "",
) -> None:
    """The same for each named node. All names are looked up first: a slip of the pen changes nothing.
    `nothing`: what to say instead of a node for which it changes nothing; empty: it does."""
    done: list[dict[str, str]] = []
    with connect(options) as client:
        _, nodes = client.nodes()
        for node in [pick("node", nodes, name) for name in names]:
            client.call(method, "api", "nodes", id_of(node), *verb)
            outcome = nothing(node) or said
            done.append({"id": id_of(node), "name": node.name, "outcome": outcome})
            if not options.as_json:
                click.echo(one_line(f"{node.name}: {outcome}"))
    if options.as_json:
        click.echo(json.dumps({"nodes": done}))
