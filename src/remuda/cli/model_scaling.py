"""`remuda models scale`: how many replicas of a model are wanted, and where."""

from typing import TYPE_CHECKING

import click

from remuda.cli.commands import WholeNumber, client_command, connect, examples
from remuda.cli.invocation import ClientOptions
from remuda.cli.model_arguments import complete_models
from remuda.cli.output import one_line
from remuda.core.errors import NotFound
from remuda.core.hints import pasted

if TYPE_CHECKING:
    from remuda.cli.client import AdminClient
    from remuda.wire.scheduling import ModelScheduled

_BY = {
    "declared": "declared with remuda models scale or the API",
    "configured": "in its configuration",
    "default": "the default",
}
_Body = dict[str, object]


class LabelPairs(click.ParamType[dict[str, str]]):
    """Labels that nodes must have all."""

    name = "KEY=VALUE,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, str]:
        if isinstance(value, dict):
            return value
        labels = dict[str, str]()
        for pair in filter(None, str(value).split(",")):
            key, equals, wanted = pair.partition("=")
            if not equals or not key:
                self.fail(f"{pair!r} is not KEY=VALUE.", param, ctx)
            labels[key] = wanted
        return labels


@click.command(
    "scale",
    short_help="Show or set how many replicas a model has, and where.",
    epilog=examples(
        "remuda models scale",
        "remuda models scale qwen3-8b --min 1 --max 3",
        "remuda models scale bge-small --every-node --selector gpu.vendor=nvidia",
        "remuda models scale qwen3-8b --reset",
    ),
)
@click.argument("name", metavar="[MODEL]", required=False, shell_complete=complete_models)
@click.option("--min", "least", type=WholeNumber(0, 10_000), help="So many are always loaded.")
@click.option("--max", "most", type=WholeNumber(0, 10_000), help="At most so many; 0: as nodes take.")
@click.option("--every-node", is_flag=True, help="One on every node that matches, instead of a number.")
@click.option("--selector", type=LabelPairs(), help="Only on nodes with all these labels; '' as configured.")
@click.option("--pin/--no-pin", "pinned", default=None, help="Never unload it, when idle or for others.")
@click.option(
    "--keep-alive", metavar="DURATION", help="Unload it after so long without use; '' as configured."
)
@click.option("--reset", is_flag=True, help="Back to what its configuration says.")
@client_command
def scale_model(
    options: ClientOptions,
    name: str | None,
    least: int | None,
    most: int | None,
    every_node: bool,
    selector: dict[str, str] | None,
    pinned: bool | None,
    keep_alive: str | None,
    reset: bool,
) -> None:
    """Show or set how many replicas a model has, and where.

    What is set here counts more than the model's configuration. Replicas that are missing are loaded as soon
    as a node can take them, also after a node is lost; more are added while all are busy, up to --max, and
    leave again when they are idle.
    """
    if every_node and (least or most):
        raise click.UsageError("give --every-node, or --min and --max")
    given: _Body = {"min_replicas": least, "max_replicas": most, "node_selector": selector}
    said: _Body = {key: value for key, value in given.items() if value is not None}
    ours: _Body = {"pinned": pinned, "keep_alive": keep_alive}
    said |= {key: value for key, value in ours.items() if value is not None}
    if every_node:
        said |= {"spread_all": True, "min_replicas": 0, "max_replicas": 0}
    if (said or reset) and name is None:
        raise click.UsageError("name the model")
    if said and reset:
        raise click.UsageError("--reset goes alone")
    with connect(options) as client:
        if name is not None and (said or reset):
            _change(client, name, said)
        try:
            answer = client.get("api", "scheduling", **({"model": name} if name else {}))
        except NotFound:
            if not reset:
                raise
            click.echo(one_line(f"{name}: nothing is declared any more"), err=True)  # It was for later.
            return
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.wire.scheduling import ModelsScheduled

    _show(answer.read(ModelsScheduled).models, alone=name is not None)


def _change(client: "AdminClient", name: str, said: _Body) -> None:
    """Nothing said: what was declared goes."""
    from remuda.wire.scheduling import ModelsScheduled

    # First, for a name that is misspelled could be declared, too.
    [now] = client.get("api", "scheduling", model=name).read(ModelsScheduled).models
    if not said:
        try:
            client.call("DELETE", "api", "nodes", "scheduling", name)
        except NotFound:
            click.echo(one_line(f"{name}: nothing was declared"), err=True)
        return
    body: _Body = {
        "model_name": now.model,
        "node_selector": _declared_selector(client, name),
        "min_replicas": now.min_replicas,
        "max_replicas": now.max_replicas,
        "spread_all": now.every_node and not ("min_replicas" in said or "max_replicas" in said),
        **said,
    }
    client.call("POST", "api", "nodes", "scheduling", body=body)


def _declared_selector(client: "AdminClient", name: str) -> dict[str, str]:
    """Not the one of the configuration, which may change."""
    import json

    from remuda.wire.scheduling import SchedulingRow

    try:
        row = client.get("api", "nodes", "scheduling", name).read(SchedulingRow)
    except NotFound:
        return {}
    return dict(json.loads(row.node_selector or "{}"))


def _show(models: "tuple[ModelScheduled, ...]", *, alone: bool) -> None:
    from rich.text import Text

    from remuda.cli.render import UNKNOWN, Column, console, fitting, show

    shown = models if alone else tuple(one for one in models if one.origin != "default")
    output = console()
    if not shown:
        show(output, Text("no model declares replicas; set them with: remuda models scale MODEL --min 1"))
        return
    columns = [
        Column("MODEL", [one.model for one in shown]),
        Column("LOADED", [_loaded(one) for one in shown], right=True),
        Column("WANTED", [one.wanted for one in shown]),
        Column("NODES", [_labels(one.selector) or "any" for one in shown], needed=2),
        Column("PINNED", ["yes" if one.pinned else "" for one in shown], needed=4),
        Column("KEEP ALIVE", [one.keep_alive or UNKNOWN for one in shown], needed=3),
        Column("SET", [_BY.get(one.origin, one.origin) for one in shown], needed=1),
    ]
    show(output, fitting(columns, output))
    for one in shown:
        if one.absent:
            undo = f"remuda models scale --reset {pasted(one.model)}"
            click.echo(
                one_line(f"{one.model}: no such model yet; this counts once it is added. To undo: {undo}")
            )
        if one.not_counted:
            click.echo(one_line(f"{one.model}: loaded but not counted, {'; '.join(one.not_counted)}"))
        if one.waiting:
            click.echo(one_line(f"{one.model}: fewer than wanted, {one.waiting}"))


def _loaded(one: "ModelScheduled") -> str:
    """Those on their way are added in brackets, those that do not count in words."""
    coming = f" (+{one.on_their_way})" if one.on_their_way else ""
    others = f", {len(one.not_counted)} not counted" if one.not_counted else ""
    return f"{one.loaded}{coming}{others}"


def _labels(selector: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in selector.items())
