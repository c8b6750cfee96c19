"""What several commands for models share: how a model is named, and what is said of one that was changed."""

import shlex
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from remuda.cli.commands import connect
from remuda.cli.invocation import ClientOptions
from remuda.cli.output import in_lines, one_line
from remuda.core.errors import NotFound, RemudaError
from remuda.core.hints import near_names

if TYPE_CHECKING:
    from remuda.cli.client import AdminClient
    from remuda.wire.operations import OpView
    from remuda.wire.serving import ModelAdded, ModelItem

_ASKED_AT: Final = {
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "completion": "/v1/completions",
}  # Of models that do not chat.


def complete_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Configured models, where a frontend answers; none otherwise."""
    given = ctx.params.get
    try:
        with connect(ClientOptions(given("url"), given("api_key"), given("ca"), given("data_dir"))) as client:
            names = [model.name for model in configured_models(client)]
    except RemudaError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


model_argument = click.argument("name", metavar="MODEL", shell_complete=complete_models)


def report_added(added: "ModelAdded") -> None:
    """How the frontend has understood the model, and what to know about it."""
    click.echo(added_line(added))
    for key in added.unknown_keys:
        if any(warning.startswith(f"{key} ") for warning in added.warnings):
            continue  # Its warning says more.
        click.echo(one_line(f"note: {key} is not supported and has no effect"), err=True)
    for warning in added.warnings:
        if warning == added.model.problem:
            continue  # Said above.
        click.echo(one_line(f"warning: {warning}"), err=True)


def added_line(added: "ModelAdded") -> str:
    name = added.model.name
    word = "changed" if added.replaced else "added"
    if added.unchanged:
        word = "taken over from its file" if added.set_aside else "already there, unchanged"
    if added.operation is not None:
        return one_line(f"{name}: {word}; its files are being fetched")
    if added.model.problem:
        return in_lines(f"{name}: {word}, but {added.model.problem}", added.model.problem_details)
    tried = "" if added.no_node else f"; {what_to_try(added.model)}"
    return one_line(f"{name}: {word}{tried}")


def what_to_try(model: "ModelItem") -> str:
    """Of one that a node can take. One whose uses are not known may chat."""
    if not model.usecases or "chat" in model.usecases:
        return f"try it with: remuda chat {shlex.quote(model.name)}"
    path = next((_ASKED_AT[use] for use in model.usecases if use in _ASKED_AT), "")
    return f"it is for {', '.join(model.usecases)}{f': POST {path}' if path else ''}"


def not_there(options: ClientOptions, name: str, missing: NotFound) -> NotFound:
    """The same, with what to do where the model is being installed or a gallery has it."""
    try:
        with connect(options) as client:
            listed = _listed(client, name)
            found = _install_of(client, (name, listed))
            near = near_names(name, (model.name for model in configured_models(client)))
    except RemudaError:  # Keys of users may neither look at galleries nor at operations.
        return missing
    if found is not None:
        return NotFound(missing.message, hint=under_way(found))
    if listed and not near:
        return NotFound(missing.message, hint=f"a gallery has it: remuda run {shlex.quote(name)}")
    return missing


def install_under_way(options: ClientOptions, name: str) -> "OpView | None":
    """Of the model that is known by this name, or in a gallery; None: there is none, or that may not be
    asked."""
    try:
        with connect(options) as client:
            return _install_of(client, (name,)) or _install_of(client, (_listed(client, name),))
    except RemudaError:
        return None


def _listed(client: "AdminClient", name: str) -> str:
    """What a gallery calls the model; empty: none has it."""
    from remuda.wire.model_galleries import GalleryModelView

    try:
        return client.get("api", "galleries", "models", name).read(GalleryModelView).name
    except NotFound:
        return ""


def _install_of(client: "AdminClient", names: tuple[str, ...]) -> "OpView | None":
    from remuda.wire.operations import OpViews

    coming = client.get("api", "ops", kind="install_model", state="live").read(OpViews).operations
    return next((op for op in coming if op.model and op.model in names), None)


def under_way(op: "OpView") -> str:
    """Of the install of a model that is not there yet."""
    if op.status == "paused":
        far = f" at {op.percentage:.0f} %" if op.percentage >= 1 else ""
        return (
            f"the install of {op.model} is paused{far}; go on with: remuda ops resume {op.id[:8]}; "
            f"end it with: remuda ops cancel {op.id[:8]}"
        )
    why = f" ({op.message})" if op.status == "retrying" else ""
    far = f", {op.percentage:.0f} %" if op.percentage >= 1 else ""
    return (
        f"{op.model} is being installed{far}{why}; see it with: remuda ops watch {op.id[:8]}; "
        f"end it with: remuda ops cancel {op.id[:8]}"
    )


def configured_models(client: "AdminClient") -> "tuple[ModelItem, ...]":
    from remuda.wire.serving import ModelItems

    return client.get("api", "models").read(ModelItems).models
