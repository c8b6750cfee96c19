"""`remuda models show`: one model as a page of lines."""

from collections.abc import Iterator
from datetime import datetime

from remuda.cli.model_tables import files_on, replica_state, size
from remuda.cli.output import in_lines, one_line
from remuda.core.hints import pasted
from remuda.wire.model_galleries import GalleryModelView
from remuda.wire.serving import ModelDetails, ModelFileView, ModelItem

_WIDTH = 14


def model_page(model: ModelItem, now: datetime) -> Iterator[str]:
    """Only what is known is shown: how it is known is said where it was computed."""
    for label, value in (*_configured(model), *_found(model.details or ModelDetails())):
        if value:
            yield one_line(f"{label:<{_WIDTH}} {value}")
    for one in model.replicas:
        yield one_line(f"{'replica':<{_WIDTH}} {one.node or one.node_id}: {replica_state(one, now)}")
    if not model.replicas:
        yield f"{'replica':<{_WIDTH}} none loaded"
    if model.problem:
        yield in_lines(f"problem: {model.problem}", model.problem_details)


def gallery_page(model: GalleryModelView) -> Iterator[str]:
    """A model that is not installed, as its gallery has it."""
    lines = [
        ("name", model.name),
        ("also called", ", ".join(model.aliases)),
        ("gallery", f"{model.gallery}; not installed"),
        ("description", model.description),
        ("licence", model.license),
        ("tags", ", ".join(model.tags)),
        ("source", model.source),
        ("quantisation", model.quantisation),
        ("variants", ", ".join(model.variants)),
        *(("file", _fetched(file)) for file in model.files),
        *(("see", url) for url in model.urls),
        ("problem", model.problem),
    ]
    for label, value in lines:
        if value:
            yield one_line(f"{label:<{_WIDTH}} {value}")
    yield one_line(f"{'install it':<{_WIDTH}} remuda models install {pasted(model.name)}")
    if model.config:
        yield "configuration"
        yield from (f"  {one_line(line)}" for line in model.config.splitlines())


def _configured(model: ModelItem) -> Iterator[tuple[str, str]]:
    yield "name", model.name
    yield "alias of", model.alias
    yield "description", model.description
    yield "backend", model.backend
    yield "file", model.file
    yield "used for", ", ".join(model.usecases)
    yield "configured in", _origin(model)
    yield "size", size(model.size_bytes) if model.size_bytes else ""
    yield "memory", f"~{size(model.memory_bytes)} when loaded" if model.memory_bytes else ""
    yield "context", f"{model.context_size} tokens" if model.context_size else ""
    yield "files on", files_on(model)


def _origin(model: ModelItem) -> str:
    kind, _, rest = model.origin.partition(":")
    if kind != "file":
        return "the store; change it with `remuda models edit`"
    frontend, _, file = rest.partition(":")
    host = frontend.partition("@")[2]
    return f"{file} in the models folder {f'on {host}' if host else 'of a frontend'}"


def _found(details: ModelDetails) -> Iterator[tuple[str, str]]:
    yield "source", _source(details)
    yield "chosen", details.choice
    for note in details.notes:
        yield "note", note
    for file in details.installed_files:
        yield "installed", _fetched(file)
    yield "format", details.format
    yield "architecture", details.architecture
    yield "parameters", count(details.parameters)
    yield "precision", details.precision
    yield "trained for", f"{details.context_length} tokens" if details.context_length else ""
    yield "layers", str(details.layers or "")
    yield "experts", str(details.experts or "")
    yield "vocabulary", str(details.vocabulary or "")
    if details.format:
        yield "chat template", "its own" if details.chat_template else "none in the file"
    yield "vision", "yes" if details.vision else ""
    if details.projector:
        yield (
            "projector",
            f"{details.projector} lies beside it; set `mmproj` to use it",
        )
    for part in details.files if len(details.files) > 1 else ():
        yield "part", part
    for file in details.downloads:
        yield "download", _fetched(file)
    for file in details.artifacts:
        yield "artifact", _fetched(file)
    yield "unknown keys", ", ".join(details.unknown_keys)


def _source(details: ModelDetails) -> str:
    if details.source.startswith("upload:"):
        return f"uploaded to the frontend ({details.source})"
    revision = details.source_revision
    known = not revision or revision in details.source
    return details.source if known else f"{details.source} (at {revision})"


def _fetched(file: ModelFileView) -> str:
    checked = f" (sha256 {file.sha256[:12]}...)" if file.sha256 else ""
    return f"{file.path} from {file.source}{checked}" if file.source else f"{file.path}{checked}"


def count(number: int) -> str:
    """As models are called by their size: 135M, 8.2B."""
    for unit, one in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= one:
            return f"{number / one:.3g}{unit}"
    return str(number or "")
