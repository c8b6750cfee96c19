"""`remuda models plan`: what loading a model would do now, without doing it."""

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from remuda.cli.commands import client_command, connect, examples
from remuda.cli.invocation import ClientOptions
from remuda.cli.model_arguments import model_argument
from remuda.cli.output import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remuda.wire.serving import ModelPlan, PlannedStepView

_NAMED_MAX = 8  # Nodes that have the same reason, out of many.


@click.command(
    "plan",
    short_help="Show where a model would be loaded, how soon, and why not elsewhere.",
    epilog=examples("remuda models plan qwen3-8b", "remuda models plan qwen3-8b --json"),
)
@model_argument
@client_command
def plan_model(options: ClientOptions, name: str) -> None:
    """Show where one more replica of a model would be loaded now, what would be unloaded for it, how long
    until it answers, and why each other node is not chosen. Nothing is done.

    Times come from what nodes were seen to do. Where nothing was measured yet, that is said.
    """
    from remuda.wire.serving import ModelPlan

    with connect(options) as client:
        answer = client.get("api", "models", name, "plan")
    if options.as_json:
        click.echo(answer.body)
        return
    for line in plan_lines(answer.read(ModelPlan)):
        click.echo(one_line(line))


def plan_lines(plan: "ModelPlan") -> "Iterator[str]":
    from remuda.cli.model_tables import size

    if not plan.node:
        later = f"; one could be loaded {plan.waits_for}" if plan.waits_for else ""
        yield f"{plan.model}: no node can take a replica of it now{later}"
    else:
        memory = "VRAM" if plan.in_vram else "RAM"
        takes = f"{size(plan.memory_bytes)} of {memory}" if plan.memory_bytes else memory
        yield f"a replica of {plan.model} would be loaded on {plan.node}, into {takes}"
        for number, step in enumerate(plan.steps, 1):
            yield f"  {number}. {_step(step)}"
        yield f"  ready {_ready(plan)}"
        yield f"  speed: {_speed(plan)}"
    if plan.not_chosen:
        yield "not chosen:" if plan.node else "why not:"
    for one in plan.not_chosen:
        more = len(one.nodes) - _NAMED_MAX
        names = ", ".join(one.nodes[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        yield f"  {names}: {one.why}"


def _step(step: "PlannedStepView") -> str:
    from remuda.cli.model_tables import size

    amount = size(step.size_bytes) if step.size_bytes else ""
    words = {
        "unload": f"unload {_replica(step.what)}",
        "copy": f"copy {amount or 'its files'} from {step.what}",
        "install": f"install the backend {step.what}",
        "load": f"load the model, {amount}" if amount else "load the model",
    }
    if step.seconds is None:
        how_long = "how long is not known"
    elif step.bytes_per_s is not None:
        how_long = f"about {_time(step.seconds)} at {size(round(step.bytes_per_s))}/s"
    else:
        where = "on other nodes" if step.measured_elsewhere else "before on this node"
        how_long = f"about {_time(step.seconds)}, as it took {where}"
    return f"{words.get(step.action, step.action)} ({how_long})"


def _replica(key: str) -> str:
    model, _, index = key.rpartition("#")
    return f"{model}, replica {index}" if model else key


def _ready(plan: "ModelPlan") -> str:
    if plan.ready_seconds is not None:
        return f"in about {_time(plan.ready_seconds)}"
    if plan.known_seconds:
        return f"in {_time(plan.known_seconds)} plus the steps whose time is not known yet"
    return "after a time that is not known: none of this was done on that node before"


def _speed(plan: "ModelPlan") -> str:
    if plan.tokens_per_s is None:
        return "not measured on that node yet"
    like = f"estimated from {plan.tokens_like}" if plan.tokens_like else "as measured"
    return f"about {plan.tokens_per_s:.0f} tokens a second, {like} on that node"


def _time(seconds: float) -> str:
    from remuda.cli.render import span

    return "a second" if seconds < 1 else span(timedelta(seconds=seconds))
