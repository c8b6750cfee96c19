"""`remuda backends` of the whole fleet: see what is where, and have it installed, upgraded and removed."""

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click
from click.shell_completion import CompletionItem

from remuda.cli.backends import Here, list_here, remove_here
from remuda.cli.commands import (
    WholeNumber,
    client_command,
    config_option,
    confirm,
    connect,
    examples,
    span_of,
)
from remuda.cli.exits import Exit, Interrupted
from remuda.cli.invocation import ClientOptions
from remuda.cli.nodes import complete_names
from remuda.cli.output import one_line
from remuda.cli.suggestions import pick
from remuda.core.errors import RemudaError

if TYPE_CHECKING:
    from remuda.cli.client import AdminClient, ApiAnswer
    from remuda.cli.ops_wait import Waiting
    from remuda.wire.operations import BackendItem, OpSubmitted, OpView, UncheckedItem

P = ParamSpec("P")
_PLAN_S = 60.0  # Registries are asked what tags stand for.


def complete_backends(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Backends that galleries offer or nodes have, where a frontend answers; none otherwise."""
    given = ctx.params.get
    try:
        with connect(ClientOptions(given("url"), given("api_key"), given("ca"), given("data_dir"))) as client:
            items = (*_items(client, "backends"), *_items(client, "backends", "available"))
    except RemudaError:
        return []
    descriptions = {item.name: item.description.partition(". ")[0] for item in items}
    return [
        CompletionItem(name, help=descriptions[name])
        for name in sorted(descriptions)
        if name.startswith(incomplete)
    ]


name_argument = click.argument("name", shell_complete=complete_backends)
local_option = click.option("--local", is_flag=True, help="On this machine only; needs no frontend.")


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """Which nodes are meant, by at most one of these."""

    nodes: tuple[str, ...] = ()
    selector: str = ""
    all_nodes: bool = False

    def body(self, client: "AdminClient") -> Mapping[str, object]:
        if self.selector:
            return {"selector": self.selector}
        if not self.nodes:
            return {}
        _, known = client.nodes()
        return {"nodes": [pick("node", known, name).name for name in self.nodes]}


@dataclass(frozen=True, slots=True)
class Terms:
    """How an operation is asked for, and whether it is waited for."""

    options: ClientOptions
    which: NodeChoice
    waiting: "Waiting"
    expires: timedelta | None
    idempotency_key: str
    dry_run: bool


def operation_command(function: Callable[Concatenate[Terms, P], None]) -> Callable[..., None]:
    """Give a command the options of all operations, gathered into its first argument."""

    @functools.wraps(function)
    def gathered(
        options: ClientOptions,
        nodes: tuple[str, ...],
        selector: str,
        all_nodes: bool,
        no_wait: bool,
        timeout: timedelta | None,
        watch: bool,
        expires: timedelta | None,
        idempotency_key: str,
        dry_run: bool,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        from remuda.cli.ops_wait import Waiting

        which = NodeChoice(_split(nodes), selector, all_nodes)
        if bool(which.nodes) + bool(selector) + all_nodes > 1:
            raise click.UsageError("give only one of --nodes, --selector and --all")
        waiting = Waiting(not no_wait, timeout, watch)
        function(Terms(options, which, waiting, expires, idempotency_key, dry_run), *args, **kwargs)

    unbound: Callable[..., None] = gathered  # Click calls it by names.
    command = client_command(unbound)
    for option in reversed(_OPERATION_OPTIONS):
        command = option(command)
    return command


_OPERATION_OPTIONS = (
    click.option(
        "--nodes",
        metavar="NAME,...",
        multiple=True,
        shell_complete=complete_names,
        help="On these nodes, separated by commas.",
    ),
    click.option("--selector", metavar="KEY=VALUE,...", default="", help="On nodes with all these labels."),
    click.option("--all", "all_nodes", is_flag=True, help="On all nodes (the default)."),
    click.option("--no-wait", is_flag=True, help="Do not wait for the operation to finish."),
    click.option(
        "--timeout",
        metavar="SPAN",
        callback=span_of,
        help="Wait this long, such as 10m; the operation continues afterwards.",
    ),
    click.option("--watch", is_flag=True, help="With --json: also print a line for each change."),
    click.option(
        "--expires",
        metavar="SPAN",
        callback=span_of,
        help="Skip nodes where it has not begun within this time, such as 24h.",
    ),
    click.option(
        "--idempotency-key",
        metavar="TEXT",
        default="",
        help="Submit only once: the same key returns the same operation.",
    ),
    click.option("--dry-run", is_flag=True, help="Only show what would be done on which node."),
)


# Looking.


@click.command(
    "list",
    short_help="List what is installed where, and newer versions.",
    epilog=examples("remuda backends", "remuda backends list --json", "remuda backends list --local"),
)
@local_option
@config_option
@client_command
def list_backends(options: ClientOptions, local: bool, config: str | None) -> None:
    """List what is installed where: versions, digests, differences between nodes, and newer versions."""
    if local:
        list_here(Here(config, options.data_dir, options.as_json))
        return
    from remuda.wire.operations import BackendItems, UpgradeItems

    with connect(options) as client:
        answer = client.get("backends")
        upgrades = client.get("api", "backends", "upgrades")
    if options.as_json:
        click.echo(json.dumps({"backends": json.loads(answer.body), "upgrades": _listed(upgrades)}))
        return
    from remuda.cli.fleet_tables import installed_table
    from remuda.cli.render import console, show

    output = console()
    show(output, installed_table(answer.read(BackendItems).root, upgrades.read(UpgradeItems).root, output))


@click.command(
    "available",
    short_help="List what the galleries offer, and which nodes it fits.",
    epilog=examples("remuda backends available", "remuda backends available text to speech"),
)
@click.argument("words", metavar="[TEXT]", nargs=-1)
@click.option("--builds", is_flag=True, help="Also list the builds for specific hardware.")
@client_command
def list_available(options: ClientOptions, words: tuple[str, ...], builds: bool) -> None:
    """List what the frontend's galleries offer, and which nodes each backend fits."""
    from remuda.cli.fleet_tables import available_table, wanted_of
    from remuda.wire.operations import BackendFits

    with connect(options) as client:
        items = wanted_of(_items(client, "backends", "available"), words, builds=builds)
        fits = client.get("api", "backends", "fits").read(BackendFits)
    if options.as_json:
        rows = [{**item.model_dump(mode="json"), "fits": fits.backends.get(item.id, [])} for item in items]
        unread = {"unread": fits.unread} if fits.unread else {}
        click.echo(json.dumps({"nodes": fits.nodes, "backends": rows, **unread}))
        return
    from remuda.cli.render import console, show

    output = console()
    show(output, available_table(items, fits, output))
    for sentence in fits.unread:
        click.echo(one_line(f"warning: {sentence}"), err=True)


@click.command(
    "upgrades",
    short_help="List what can be upgraded, and where nodes differ.",
    epilog=examples("remuda backends upgrades", "remuda backends upgrades --check --json"),
)
@click.option("--check", is_flag=True, help="Ask the registries now; takes a few seconds.")
@client_command
def list_upgrades(options: ClientOptions, check: bool) -> None:
    """List what can be upgraded, where nodes differ, when galleries and registries were last asked, and which
    of them could not be reached."""
    from remuda.wire.operations import UpgradesReply

    with connect(options, timeout_s=_PLAN_S) as client:
        path = ("api", "ops", "upgrades")
        answer = client.call("POST", *path, "check") if check else client.get(*path)
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.cli.fleet_tables import age_lines, known_bad, upgrade_table
    from remuda.cli.render import console, show

    output, reply = console(), answer.read(UpgradesReply)
    _tell_unchecked(reply.unchecked)
    for one in reply.unread if check else ():  # It matters to nothing that is installed.
        warning = f"warning: {one.source} could not be read; nothing installed came from it: {one.reason}"
        click.echo(one_line(warning), err=True)
    if reply.upgrades:
        show(output, upgrade_table(reply.upgrades, output))
    for bad in reply.known_bad:
        click.echo(one_line(known_bad(bad)))
    for line in age_lines(reply):
        click.echo(one_line(line))


def _tell_unchecked(unchecked: "Sequence[UncheckedItem]") -> None:
    from remuda.cli.render import local

    for one in unchecked:
        last = f"; it last answered at {local(one.checked_at)}" if one.checked_at else ""
        line = f"{', '.join(one.backends)} could not be checked ({one.source}): {one.reason}{last}"
        click.echo(one_line(f"warning: {line}"), err=True)


def _listed(answer: "ApiAnswer") -> list[object]:
    """The upgrades as a list; frontends have them by name, and each has its name."""
    return list(json.loads(answer.body).values())


# Changing.


@click.command(
    "install",
    short_help="Install a backend on nodes, from a gallery or by URI.",
    epilog=examples(
        "remuda backends install llama-cpp",
        "remuda backends install llama-cpp --nodes attic,cellar",
        "remuda backends install whisper --selector gpu.vendor=nvidia --no-wait",
        "remuda backends install quay.io/me/my-backend:v2 --name mine",
    ),
)
@click.argument("what", metavar="NAME|URI", shell_complete=complete_backends)
@click.option("--name", default="", help="For a URI: install it under this name. Default: its own.")
@click.option("--alias", default="", help="For a URI: a second name for it.")
@operation_command
def install_backend(terms: Terms, what: str, name: str, alias: str) -> None:
    """Install a backend on nodes: one from a gallery by NAME, or an image or archive at URI.

    Each node gets the build that fits it. A build for specific hardware needs --nodes or --selector.
    Waits until it is done; Ctrl-C stops waiting, not the operation.
    """
    outside = "/" in what
    if not outside and (name or alias):
        raise click.UsageError("--name and --alias are for URIs: a gallery names its backends")
    source = {"uri": what, "name": name, "alias": alias} if outside else {"backend": what}
    _ask(terms, {"kind": "install", **source})


@click.command(
    "upgrade",
    epilog=examples(
        "remuda backends upgrade llama-cpp",
        "remuda backends upgrade llama-cpp --rolling --batch 2",
        "remuda backends upgrade --all-backends --rolling",
    ),
)
@click.argument("name", required=False, shell_complete=complete_backends)
@click.option("--all-backends", is_flag=True, help="Everything that can be upgraded; see `upgrades`.")
@click.option(
    "--rolling",
    is_flag=True,
    help="One node first, then batches. A node that cannot start the new version is rolled back, and the "
    "upgrade stops.",
)
@click.option("--batch", type=WholeNumber(1, 10_000), metavar="N", help="Nodes at a time.")
@click.option(
    "--force",
    is_flag=True,
    help="Also to a version that failed to start in a roll-out, and where nothing is newer: what runs is "
    "stopped.",
)
@operation_command
def upgrade_backend(
    terms: Terms, name: str | None, all_backends: bool, rolling: bool, batch: int | None, force: bool
) -> None:
    """Upgrade a backend on the nodes that have it. Waits until it is done; Ctrl-C stops only the waiting."""
    if all_backends == bool(name):
        raise click.UsageError("give the NAME of a backend, or --all-backends")
    if all_backends and force:
        raise click.UsageError("--force is for one backend: give its NAME")
    roll_out = {"policy": "rolling" if rolling else "all", **({"batch": batch} if batch else {})}
    if name:
        wish = {"kind": "upgrade", "backend": name, "roll_out": roll_out, "force": force}
        _ask(terms, wish, warn_first=rolling)
    else:
        _upgrade_all(terms, roll_out)


@click.command(
    "remove",
    epilog=examples(
        "remuda backends remove llama-cpp",
        "remuda backends remove llama-cpp --nodes attic",
        "remuda backends remove --local llama-cpp",
    ),
)
@name_argument
@local_option
@config_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@operation_command
def remove_backend(terms: Terms, name: str, local: bool, config: str | None, yes: bool) -> None:
    """Remove a backend from all nodes, or from some. Nodes that are offline remove it when they return.

    At a terminal it asks first, with the models that need the backend. Waits until it is done; Ctrl-C stops
    waiting, not the operation.
    """
    if local:
        remove_here(Here(config, terms.options.data_dir, terms.options.as_json), name)
        return
    if not yes and not terms.dry_run and not terms.options.as_json and sys.stdin.isatty():
        _confirm_removal(terms, name)
    _ask(terms, {"kind": "remove", "backend": name})


def _confirm_removal(terms: Terms, name: str) -> None:
    from remuda.wire.serving import ModelItems

    with connect(terms.options) as client:
        models = client.get("api", "models").read(ModelItems).models
    needed_by = [model.name for model in models if model.backend == name]
    if needed_by:
        click.echo(one_line(f"{name} is needed by {', '.join(needed_by)}"), err=True)
    which = terms.which
    chosen = f"nodes with {which.selector}" if which.selector else ", ".join(which.nodes)
    confirm(one_line(f"Remove {name} from {chosen or 'all nodes'}?"))


def _ask(terms: Terms, wish: Mapping[str, object], *, warn_first: bool = False) -> None:
    """`warn_first`: what to know is said, and at a terminal agreed to, before anything begins."""
    from remuda.wire.operations import OpSubmitted

    extra: dict[str, object] = {"dry_run": terms.dry_run, "idempotency_key": terms.idempotency_key}
    if terms.expires is not None:
        extra["expires_s"] = terms.expires.total_seconds()
    with connect(terms.options, timeout_s=_PLAN_S) as client:
        body = {**wish, **extra, **terms.which.body(client)}
        warnings = _warned(terms.options, client, body) if warn_first and not terms.dry_run else ()
        answer = _submit(client, "api", "ops", body=body)
    if terms.dry_run:
        _tell_plan(terms.options, answer.body)
        return
    code = _follow_up(terms, [answer.read(OpSubmitted)], together=False, warnings=warnings)
    click.get_current_context().exit(code)


def _warned(options: ClientOptions, client: "AdminClient", body: Mapping[str, object]) -> Sequence[str]:
    """What was warned of."""
    from remuda.wire.operations import OpPlan

    plan = _submit(client, "api", "ops", body={**body, "dry_run": True}).read(OpPlan)
    for warning in plan.warnings:
        click.echo(one_line(f"warning: {warning}"), err=True)
    if plan.warnings and sys.stdin.isatty() and not options.as_json:
        click.confirm("Continue anyway?", abort=True, err=True)
    return plan.warnings


def _upgrade_all(terms: Terms, roll_out: Mapping[str, object]) -> None:
    from remuda.cli.fleet_tables import age_lines, known_bad
    from remuda.wire.operations import OpsSubmitted, UpgradesReply

    which = terms.which
    if which.nodes or which.selector or terms.expires or terms.idempotency_key or terms.dry_run:
        raise click.UsageError(
            "--all-backends cannot be combined with these options; upgrade backends one by one instead"
        )
    with connect(terms.options, timeout_s=_PLAN_S) as client:
        submitted = _submit(client, "api", "ops", "upgrades", body=roll_out).read(OpsSubmitted)
    for reason in submitted.refused:
        click.echo(one_line(f"warning: {reason}"), err=True)
    _tell_unchecked(submitted.unchecked)
    refused = {refusal.backend_name for refusal in submitted.refusals}
    for bad in submitted.known_bad:
        if bad.backend_name not in refused:
            click.echo(one_line(known_bad(bad)), err=True)
    if not submitted.operations and not submitted.refused and not terms.options.as_json:
        reply = UpgradesReply(
            unchecked=submitted.unchecked, checked=submitted.checked, known_bad=submitted.known_bad
        )
        for line in age_lines(reply):
            click.echo(one_line(line))
        return
    code = _follow_up(terms, submitted.operations, together=True)
    click.get_current_context().exit(code or (Exit.NOT_EVERYWHERE if submitted.refused else Exit.DONE))


def _submit(client: "AdminClient", *path: str, body: Mapping[str, object]) -> "ApiAnswer":
    try:
        return client.call("POST", *path, body=body)
    except KeyboardInterrupt:
        hint = "see `remuda ops` for whether it has begun"
        raise Interrupted("interrupted before the frontend answered", hint=hint) from None


def _follow_up(
    terms: Terms, submitted: "Sequence[OpSubmitted]", *, together: bool, warnings: Sequence[str] = ()
) -> Exit:
    from remuda.cli.ops_wait import wait_and_report

    for one in submitted:
        if one.joined:
            click.echo(one_line(_joined(one.operation)), err=True)
        for warning in one.warnings:
            if warning not in warnings:
                click.echo(one_line(f"warning: {warning}"), err=True)
    ops = [one.operation for one in submitted]
    return wait_and_report(terms.options, ops, terms.waiting, together=together)


def _joined(op: "OpView") -> str:
    """What a wish was joined to. Only by its idempotency key can that be an operation that is over."""
    from remuda.cli.ops_state import short_id

    if op.finished_at is None:
        return f"operation {short_id(op.id)} already does this; following it"
    ended = "was cancelled" if op.status == "cancelled" else op.status
    return (
        f"this key was used before, for operation {short_id(op.id)}, which {ended}; nothing new was started "
        "(use another key, or none, to start a new operation)"
    )


def _tell_plan(options: ClientOptions, body: bytes) -> None:
    if options.as_json:
        click.echo(body)
        return
    from remuda.cli.ops_tables import plan_table
    from remuda.cli.render import console, show
    from remuda.wire.codec import decode
    from remuda.wire.operations import OpPlan

    plan = decode(OpPlan, body, bytes_max=len(body))
    for warning in plan.warnings:
        click.echo(one_line(f"warning: {warning}"), err=True)
    show(console(), plan_table(plan.steps, plan.fetches))


def _items(client: "AdminClient", *path: str) -> "list[BackendItem]":
    from remuda.wire.operations import BackendItems

    return client.get(*path).read(BackendItems).root


def _split(given: Sequence[str]) -> tuple[str, ...]:
    """Names that were separated by commas, or given one by one."""
    return tuple(name.strip() for text in given for name in text.split(",") if name.strip())


VERBS = (list_backends, list_available, list_upgrades, install_backend, upgrade_backend, remove_backend)
