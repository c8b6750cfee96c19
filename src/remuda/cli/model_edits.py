"""`remuda models edit, rename, export, import`: configured models as text."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from remuda.cli.commands import client_command, connect, examples
from remuda.cli.invocation import ClientOptions
from remuda.cli.model_arguments import complete_models, configured_models, model_argument, report_added
from remuda.cli.model_installs import report_fetched
from remuda.cli.output import one_line
from remuda.core.errors import Conflict, Invalid, RemudaError

if TYPE_CHECKING:
    from remuda.cli.client import AdminClient, ApiAnswer
    from remuda.wire.serving import ModelAdded, ModelRenamed, ModelText

_CHANGE_S = 60.0


def add_edit_commands(group: click.Group) -> None:
    for command in (edit_model, rename_model, export_models, import_models):
        group.add_command(command)


@click.command(
    "edit",
    short_help="Edit a model's configuration.",
    epilog=examples(
        "remuda models edit qwen3-8b",
        "remuda models edit qwen3-8b --set parameters.temperature=0.6 --set context_size=16384",
        "remuda models edit qwen3-8b --set mmproj=null",
        "remuda models edit qwen3-8b --file qwen3-8b.yaml",
    ),
)
@model_argument
@click.option(
    "--set",
    "assigned",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set this key, and leave all other lines as they are; null removes it. Can be given several times.",
)
@click.option("--file", metavar="FILE", type=click.Path(), help="Take the whole text from this file.")
@client_command
def edit_model(options: ClientOptions, name: str, assigned: tuple[str, ...], file: str | None) -> None:
    """Edit a model's configuration in $VISUAL or $EDITOR.

    On an error the editor opens again with the message. Comments and unknown keys stay. If another person
    changes the model meanwhile, nothing is overwritten: the editor opens again, and names a file with their
    text.
    """
    if assigned and file:
        raise click.UsageError("give --set or --file, not both")
    answer: ApiAnswer | None
    with connect(options, _CHANGE_S) as client:
        if assigned:
            answer = client.call("PATCH", "api", "models", name, "config", body={"assign": list(assigned)})
        else:
            current = _text_of(client, name)
            answer = _from_file(client, current, file) if file else _from_editor(client, current)
    if answer is None:
        click.echo('{"unchanged":true}' if options.as_json else one_line(f"{name}: nothing changed"))
    elif options.as_json:
        click.echo(answer.body)
    else:
        from remuda.wire.serving import ModelAdded

        added = answer.read(ModelAdded)
        _report_edited(added)
        report_fetched(options, [added])


def _report_edited(added: "ModelAdded") -> None:
    if added.unchanged:
        click.echo(one_line(f"{added.model.name}: nothing changed"))
    else:
        report_added(added)


def _text_of(client: "AdminClient", name: str) -> "ModelText":
    from remuda.wire.serving import ModelText

    return client.get("api", "models", name, "config").read(ModelText)


def _from_file(client: "AdminClient", current: "ModelText", file: str) -> "ApiAnswer":
    from remuda.cli.model_editor import put_text
    from remuda.cli.model_files import yaml_text

    text = yaml_text(Path(file).expanduser())
    return client.require_success(put_text(client, current, text))


def _from_editor(client: "AdminClient", current: "ModelText") -> "ApiAnswer | None":
    from remuda.cli.model_editor import edit_until_accepted
    from remuda.core.hints import pasted

    if current.file:
        raise Conflict(
            f"{current.name} is described by the file {current.file} in the models folder on "
            f"{current.host or 'a frontend'}",
            hint=f"edit that file, or take the model over with: remuda models import {pasted(current.name)}",
        )
    return edit_until_accepted(client, current)


@click.command(
    "rename",
    epilog=examples(
        "remuda models rename smollm2-135m-instruct tiny", "remuda models rename a b --keep-alias"
    ),
)
@model_argument
@click.argument("new", metavar="NEW")
@click.option("--keep-alias", is_flag=True, help="Keep the old name as an alias.")
@client_command
def rename_model(options: ClientOptions, name: str, new: str, keep_alias: bool) -> None:
    """Rename a model.

    Loaded replicas are unloaded when their requests have ended; the next request for the new name loads it.
    API keys that are limited to the old name, and aliases of it, follow. While an operation on the model is
    under way, it is not renamed.
    """
    with connect(options, _CHANGE_S) as client:
        body = {"name": new, "keep_alias": keep_alias}
        answer = client.call("POST", "api", "models", name, "rename", body=body)
    if options.as_json:
        click.echo(answer.body)
        return
    from remuda.wire.serving import ModelRenamed

    for line in _renamed(name, answer.read(ModelRenamed), keep_alias):
        click.echo(one_line(line))


def _renamed(old: str, renamed: "ModelRenamed", keep_alias: bool) -> list[str]:
    new = renamed.model.name
    lines = [f"{old}: renamed to {new}" + (f"; {old} stays as an alias" if keep_alias else "")]
    if count := len(renamed.unloads):
        which = (
            "1 replica is unloaded when its" if count == 1 else f"{count} replicas are unloaded when their"
        )
        lines.append(f"{which} requests have ended; the next request for {new} loads it")
    if renamed.keys:
        lines.append(f"API keys that follow: {', '.join(renamed.keys)}")
    if renamed.aliases:
        lines.append(f"aliases that follow: {', '.join(renamed.aliases)}")
    return lines


@click.command(
    "export",
    short_help="Write models' YAML to files, or one to standard output.",
    epilog=examples(
        "remuda models export qwen3-8b > qwen3-8b.yaml",
        "remuda models export -o backup",
        "remuda models export qwen3-8b bge-m3 -o backup --force",
    ),
)
@click.argument("names", metavar="[MODEL]...", nargs=-1, shell_complete=complete_models)
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="FOLDER",
    type=click.Path(),
    help="Write one file per model here; -: one to standard output.",
)
@click.option("--force", is_flag=True, help="Overwrite files that differ.")
@client_command
def export_models(options: ClientOptions, names: tuple[str, ...], folder: str | None, force: bool) -> None:
    """Write the YAML of models as it is stored, comments included: of those named, or of all."""
    if folder == "-":
        folder = None
    if folder is None and len(names) != 1 and not options.as_json:
        raise click.UsageError("standard output takes one model: name it, or give a folder with -o")
    with connect(options, _CHANGE_S) as client:
        wanted = names or tuple(one.name for one in configured_models(client))
        texts = [_text_of(client, name) for name in wanted]
    if folder is not None:
        written = write_texts(texts, Path(folder).expanduser(), force=force)
        for name, path in () if options.as_json else written.items():
            click.echo(one_line(f"{name}: {path}"))
    elif not options.as_json:
        click.echo(texts[0].config, nl=False)
    if options.as_json:
        from remuda.wire.codec import encode
        from remuda.wire.serving import ModelTexts

        click.echo(encode(ModelTexts(models=tuple(texts))))


def write_texts(texts: "list[ModelText]", folder: Path, *, force: bool = False) -> dict[str, Path]:
    """One file for each, none over a file that says something else, unless forced. All are checked before the
    first is written."""
    paths = {one.name: folder / f"{one.name.replace('/', '__')}.yaml" for one in texts}
    if len(set(paths.values())) < len(paths):
        raise Invalid("two of these models would have the same file name", hint="export them one by one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in texts:
            path = paths[one.name]
            if not force and path.exists() and path.read_bytes() != one.config.encode():
                raise Invalid(
                    f"{path} exists and differs", hint="give --force to overwrite it, or another folder"
                )
        for one in texts:
            paths[one.name].write_bytes(one.config.encode())
    except OSError as error:
        from remuda.core.os_errors import os_reason

        raise Invalid(f"{error.filename or folder} cannot be written: {os_reason(error)}") from None
    return paths


@click.command(
    "import",
    short_help="Add models from YAML files, or take over those of a followed folder.",
    epilog=examples(
        "remuda models import qwen3-8b.yaml", "remuda models import backup/", "remuda models import qwen3-8b"
    ),
)
@click.argument("sources", metavar="FILE|FOLDER|MODEL...", nargs=-1, required=True)
@client_command
def import_models(options: ClientOptions, sources: tuple[str, ...]) -> None:
    """Add models from YAML files, or change those of their names.

    A model that a file in the frontend's models folder describes is taken over: that file is renamed to
    FILE.imported, and the model is changed with `remuda models edit` from then on. Such a model can also be
    given by its name. All files are checked before the first is imported.
    """
    from remuda.cli.model_files import of_file

    texts = sorted((one for source in sources for one in _sources(source)), key=_is_alias)
    added: list[tuple[str, ApiAnswer]] = []
    failed: list[tuple[str, RemudaError]] = []
    with connect(options, _CHANGE_S) as client:
        for source, text in texts:
            try:
                added.append((source, _import(client, source, text)))
            except RemudaError as error:
                if len(texts) == 1:
                    raise of_file(error, source) from None
                failed.append((source, error))
    _report_imports(options, added, failed)
    if failed:
        click.get_current_context().exit(1)


def _sources(source: str) -> list[tuple[str, str | None]]:
    """Each file with its text; a model's name without one."""
    from remuda.cli.model_files import yaml_files, yaml_text

    path = Path(source).expanduser()
    if path.is_dir():
        try:
            return [(str(file), yaml_text(file)) for file in yaml_files(path)]
        except Invalid as error:
            raise Invalid(f"{error.message}; nothing was imported", hint=error.hint) from None
    if path.suffix.lower() == ".gguf":
        raise Invalid(f"{path} is not a YAML file", hint=f"remuda models add {path}")
    named = not path.exists() and path.suffix.lower() not in (".yaml", ".yml")
    return [(source, None if named else yaml_text(path))]


def _is_alias(source: tuple[str, str | None]) -> bool:
    """An alias can only be added when its model is there."""
    from remuda.models.reading import read_model

    return source[1] is not None and bool(read_model(source[1]).alias)


def _import(client: "AdminClient", source: str, text: str | None) -> "ApiAnswer":
    if text is None:
        return client.call("POST", "api", "models", source, "import")
    return client.call("POST", "api", "models", body={"config": text, "take_over": True})


def _report_imports(
    options: ClientOptions, added: "list[tuple[str, ApiAnswer]]", failed: list[tuple[str, RemudaError]]
) -> None:
    from remuda.wire.codec import encode
    from remuda.wire.serving import ModelAdded, ModelsImported, UnusableModel

    replies = [answer.read(ModelAdded) for _, answer in added]
    refused = tuple(UnusableModel(source=source, reason=str(error)) for source, error in failed)
    if options.as_json:
        click.echo(encode(ModelsImported(models=tuple(replies), failed=refused)))
        return
    for one in replies:
        report_added(one)
        if one.set_aside:
            click.echo(one_line(f"the file that described it is now {one.set_aside}"))
    for bad in refused:
        click.echo(one_line(f"{bad.source}: {bad.reason}"), err=True)
    report_fetched(options, replies)
