"""`remuda models`: what the fleet can serve, and what it serves now."""

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from remuda.cli.commands import ListByDefault, WholeNumber, client_command, connect, examples
from remuda.cli.invocation import ClientOptions
from remuda.cli.model_arguments import (
    complete_models,
    configured_models,
    model_argument,
    report_added,
    under_way,
)
from remuda.cli.model_edits import add_edit_commands
from remuda.cli.model_installs import install, install_and_report, remove, report_fetched
from remuda.cli.model_plan import plan_model
from remuda.cli.model_scaling import scale_model
from remuda.cli.output import one_line
from remuda.core.errors import FrontendUnreachable, Invalid, NotFound, RemudaError
from remuda.core.hints import near_names

if TYPE_CHECKING:
    from remuda.cli.client import AdminClient, ApiAnswer
    from remuda.cli.model_files import LocalModel
    from remuda.wire.operations import OpView
    from remuda.wire.serving import ModelLoaded

_LOADED_ALREADY = 200  # A load that was begun is 202.
_ADD_S = 60.0
_NAME_LINE = re.compile(r"^line \d+: name:")  # Of text that was made of options, which no person has seen.


@click.group(
    "models",
    cls=ListByDefault,
    short_help="List, install, add, load and unload models.",
    epilog=examples(
        "remuda models",
        "remuda models install qwen3:0.6b",
        "remuda models add SmolLM2.gguf",
        "remuda models ps",
    ),
)
def group() -> None:
    """Models that the fleet can serve. Without a command: list them."""


@group.command(
    "list",
    short_help="List the models, where their files are, and if they are loaded.",
    epilog=examples("remuda models", "remuda models list --wide", "remuda models list --json"),
)
@click.option("--wide", is_flag=True, help="Also quantisations and sources.")
@client_command
def list_models(options: ClientOptions, wide: bool) -> None:
    """List the models, where their files are, and whether they are loaded."""
    from remuda.wire.operations import OpViews

    with connect(options) as client:
        answer = client.get("api", "models")
        if options.as_json:
            click.echo(answer.body)
            return
        coming = client.get("api", "ops", kind="install_model", state="live").read(OpViews).operations
    from remuda.cli.model_tables import model_table
    from remuda.cli.render import console, show
    from remuda.core.clock import SystemClock
    from remuda.wire.serving import ModelItems

    output, now = console(), answer.date or SystemClock().now()
    listed = answer.read(ModelItems)
    if listed.models or not coming:
        show(output, model_table(listed.models, now, output, wide=wide))
    for op in coming:
        click.echo(one_line(under_way(op)))
    for one in listed.unusable:
        click.echo(one_line(f"{one.source} cannot be used: {one.reason}"))


@group.command(
    "show",
    short_help="Show one model: its file, what it needs, and where it is loaded.",
    epilog=examples("remuda models show qwen3-8b", "remuda models show qwen3-8b --json"),
)
@model_argument
@client_command
def show_model(options: ClientOptions, name: str) -> None:
    """Show one model: what its files say of themselves, what it needs, and where it is loaded.

    A model that is not installed is shown as its gallery has it.
    """
    from remuda.cli.model_details import gallery_page, model_page
    from remuda.core.clock import SystemClock
    from remuda.wire.model_galleries import GalleryModelView
    from remuda.wire.serving import ModelItem

    not_here = False
    with connect(options) as client:
        try:
            answer = client.get("api", "models", name)
        except NotFound as missing:
            answer, not_here = _in_a_gallery(client, name, missing), True
    if options.as_json:
        click.echo(answer.body)
        return
    now = answer.date or SystemClock().now()
    read = answer.read
    page = gallery_page(read(GalleryModelView)) if not_here else model_page(read(ModelItem), now)
    for line in page:
        click.echo(line)


@group.command(
    "search",
    short_help="Search the galleries for models.",
    epilog=examples("remuda models search", "remuda models search qwen3", "remuda models search embeddings"),
)
@click.argument("words", metavar="[TEXT]", nargs=-1)
@click.option("--limit", type=WholeNumber(1, 10_000), default=50, show_default=True, help="At most so many.")
@client_command
def search_models(options: ClientOptions, words: tuple[str, ...], limit: int) -> None:
    """Search the galleries for models whose name, aliases, tags or description contain all words of TEXT."""
    with connect(options) as client:
        answer = client.get("api", "galleries", "models", term=" ".join(words), limit=str(limit))
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.cli.model_tables import gallery_table
    from remuda.cli.render import console, show
    from remuda.wire.model_galleries import GalleryModels

    found, output = answer.read(GalleryModels), console()
    show(output, gallery_table(found.models, output))
    if found.total > len(found.models):
        click.echo(f"{found.total - len(found.models)} more; name more words, or give --limit")
    for one in found.unread:
        click.echo(
            one_line(f"note: the gallery {one.gallery} could not be read; --json has the reason"), err=True
        )


@group.command(
    "ps",
    short_help="List loaded models: where, how busy, and when they unload.",
    epilog=examples("remuda models ps", "remuda models ps --json"),
)
@client_command
def list_replicas(options: ClientOptions) -> None:
    """List loaded models: on which node, how busy, and when they are unloaded if idle.

    A model loaded on two nodes, or twice on one, has a line for each of these replicas. BUSY: how many
    requests it has now, of how many it takes at once; more only where several frontends let one in at the
    same moment, which the engine queues. MEMORY with a ~ is computed, and not measured yet. Not confirmed:
    its worker was not heard for so long, so whether it still runs is not known.
    """
    with connect(options) as client:
        answer = client.get("api", "replicas")
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.cli.model_tables import replica_table
    from remuda.cli.render import console, show
    from remuda.core.clock import SystemClock
    from remuda.wire.serving import ReplicaViews

    output, now = console(), answer.date or SystemClock().now()
    show(output, replica_table(answer.read(ReplicaViews).replicas, now, output))


@group.command(
    "add",
    short_help="Add a model from a file, or from any source.",
    epilog=examples(
        "remuda models add ~/Downloads/SmolLM2-135M-Instruct.Q4_1.gguf",
        "remuda models add qwen3-8b.yaml",
        "remuda models add model.gguf --name tiny --context 2048",
        "remuda models add hf://Qwen/Qwen3-0.6B-GGUF",
    ),
)
@click.argument("file", metavar="FILE.yaml|FILE.gguf|FOLDER|SOURCE", type=click.Path())
@click.option("--name", help="Name of the model in requests. Default: the one in the file.")
@click.option("--context", type=WholeNumber(1), help="Context size in tokens, for what is not a YAML file.")
@click.option("--upload", is_flag=True, help="Upload the file even to a frontend on this machine.")
@click.option("--replace", is_flag=True, help="Replace another model of this name, and its settings.")
@click.option("--no-wait", is_flag=True, help="Do not wait for what is to be fetched.")
@client_command
def add_model(
    options: ClientOptions,
    file: str,
    name: str | None,
    context: int | None,
    upload: bool,
    replace: bool,
    no_wait: bool,
) -> None:
    """Add a model from a YAML file, from a GGUF file alone (its header has the rest), or from a folder with
    safetensors.

    A GGUF file is linked into this machine's models folder, or copied where it cannot be linked. To a
    frontend on another machine it is uploaded; after a break the same command goes on where it was. Any other
    SOURCE is installed, as by `remuda models install`. A YAML file changes the model of its name; a GGUF file
    does so only with --replace. What a YAML file names to be downloaded is fetched; Ctrl-C stops waiting for
    it, and nothing else.
    """
    from remuda.cli.model_files import is_gguf, local_model, models_folder
    from remuda.models.source_refs import is_source

    if name is not None and not name.strip():
        raise click.UsageError("--name is empty")
    place = Path(file).expanduser()
    if replace and (upload or place.is_dir() or not place.exists()):
        raise click.UsageError("--replace is for a GGUF or YAML file; otherwise remove that model first")
    install_fields: dict[str, str | int] = {"name": name or "", "context_size": context or 0}
    if is_source(file) and not place.exists():
        install_and_report(options, {"model": file, **install_fields}, wait=not no_wait)
    if not place.suffix and not place.exists():
        hint = f"for a model by its name: remuda models install {shlex.quote(file)}"
        raise Invalid(f"there is no file {file}", hint=hint)
    if upload and not (place.is_dir() or is_gguf(place)):
        raise click.UsageError("--upload is for GGUF files and folders")
    models = None if upload else models_folder(options, os.environ)
    if place.is_dir() or (is_gguf(place) and models is None):
        _install_from_here(options, place, install_fields, elsewhere=models is None)
    with connect(options, _ADD_S) as client:
        model = local_model(place, name, context, models)
        answer = _added(client, model, place, name, only_new=is_gguf(place) and not replace)
    if model.note:
        click.echo(one_line(f"note: {model.note}"), err=True)
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.wire.serving import ModelAdded

    added = answer.read(ModelAdded)
    report_added(added)
    report_fetched(options, [added], wait=not no_wait)


def _install_from_here(
    options: ClientOptions, place: Path, install_fields: "dict[str, str | int]", *, elsewhere: bool
) -> None:
    """Of a file or folder of this machine, by an operation. Ends the command."""
    if elsewhere or options.url or os.environ.get("REMUDA_URL"):
        from remuda.cli.model_upload import upload_model
        from remuda.model_installs.naming import checked_name

        if name := str(install_fields["name"]):
            checked_name(name)  # Before hours of uploading.
        source, called = upload_model(options, place, str(install_fields["name"]))
        install_fields = {**install_fields, "name": called}
    else:
        source = place.resolve().as_uri()
    install_and_report(options, {"model": source, **install_fields}, wait=True)


def _added(
    client: "AdminClient", model: "LocalModel", file: Path, name: str | None, *, only_new: bool
) -> "ApiAnswer":
    """What is refused leaves nothing in the folder of models."""
    body: dict[str, str | bool] = {"config": model.text, **({"only_new": True} if only_new else {})}
    try:
        return client.call("POST", "api", "models", body=body)
    except FrontendUnreachable:  # It may have been added before the connection broke.
        raise
    except RemudaError as error:
        from remuda.cli.model_files import is_gguf, of_file

        model.take_back()
        if name is None and not is_gguf(file):
            raise of_file(error, str(file)) from None
        if name is None or not isinstance(error, Invalid):
            raise
        raise Invalid(_NAME_LINE.sub("--name:", error.message), hint=error.hint) from None


@group.command(
    "load", epilog=examples("remuda models load qwen3-8b", "remuda models load qwen3-8b --no-wait")
)
@model_argument
@click.option("--no-wait", is_flag=True, help="Do not wait until it is loaded.")
@client_command
def load_model(options: ClientOptions, name: str, no_wait: bool) -> None:
    """Load one more replica of a model, ahead of requests.

    Where it is loaded and no node can take another replica, that is said, and nothing is done.
    """
    from remuda.cli.ops_wait import Waiting, wait_and_report
    from remuda.wire.operations import OpView
    from remuda.wire.serving import ModelLoaded

    with connect(options) as client:
        answer = client.call("POST", "api", "models", name, "load")
    if answer.status == _LOADED_ALREADY:
        loaded = answer.read(ModelLoaded)
        click.echo(answer.body if options.as_json else one_line(_already(loaded)))
        for why in () if options.as_json else loaded.others:
            click.echo(one_line(f"no replica can go to {why}"))
        return
    op = answer.read(OpView)
    click.get_current_context().exit(wait_and_report(options, [op], Waiting(wait=not no_wait)))


@group.command(
    "unload",
    epilog=examples(
        "remuda models unload qwen3-8b",
        "remuda models unload qwen3-8b --node gpu-1",
        "remuda models unload --all",
    ),
)
@click.argument("name", metavar="[MODEL]", required=False, shell_complete=complete_models)
@click.option("--all", "everything", is_flag=True, help="Every model.")
@click.option("--node", default="", help="Only on this node.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is gone.")
@client_command
def unload_model(
    options: ClientOptions, name: str | None, everything: bool, node: str, no_wait: bool
) -> None:
    """Unload a model's replicas. Requests in progress finish first."""
    if (name is None) is not everything:
        raise click.UsageError("name one model, or give --all")
    from remuda.cli.ops_wait import Waiting, wait_and_report

    with connect(options) as client:
        names = (
            [name] if name is not None else [one.name for one in configured_models(client) if not one.alias]
        )
        ops = [op for each in names for op in _unload(client, each, node)]
    if not ops and not options.as_json:
        click.echo(one_line("nothing was loaded" if name is None else f"{name}: it was not loaded"))
    click.get_current_context().exit(wait_and_report(options, ops, Waiting(wait=not no_wait), together=True))


def _in_a_gallery(client: "AdminClient", name: str, missing: NotFound) -> "ApiAnswer":
    """NotFound, with whichever hint is the better one, when no gallery has it either."""
    from remuda.wire.operations import OpViews

    try:
        return client.get("api", "galleries", "models", name)
    except NotFound as unlisted:
        coming = client.get("api", "ops", kind="install_model", state="live").read(OpViews).operations
        for op in coming:
            if op.model == name:
                raise NotFound(f"there is no model {name!r} yet", hint=under_way(op)) from None
        near = near_names(name, (model.name for model in configured_models(client)))
        words = f"{missing.message}, and {unlisted.message.replace(f'a model {name!r}', 'one of this name')}"
        raise NotFound(words, hint=missing.hint if near else unlisted.hint) from None


def _already(loaded: "ModelLoaded") -> str:
    return f"{loaded.model} is already loaded on {', '.join(loaded.nodes)}"


def _unload(client: "AdminClient", name: str, node: str) -> "tuple[OpView, ...]":
    from remuda.wire.serving import ModelOps

    body = {"node": node} if node else None
    return client.call("POST", "api", "models", name, "unload", body=body).read(ModelOps).operations


add_edit_commands(group)
group.add_command(scale_model)
group.add_command(plan_model)
group.add_command(install)
group.add_command(remove)
