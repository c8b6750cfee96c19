"""Models and replicas as tables."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from rich.console import Console, Group, RenderableType
from rich.text import Text

from remuda.cli.output import one_line
from remuda.cli.render import UNKNOWN, Column, ago, fitting, span
from remuda.core.hints import pasted
from remuda.wire.model_galleries import GalleryModelView
from remuda.wire.serving import ModelItem, ReplicaView

_MIB = 1 << 20
_GIB = 1 << 30
_TAGS_MAX = 4
_UNREACHABLE = "unreachable"
_LET_IN_TOGETHER = (
    "\nBUSY above the limit: frontends let requests in at the same moment; the engine queues what exceeds it"
)


def model_table(
    models: Sequence[ModelItem], now: datetime, output: Console, *, wide: bool = False
) -> RenderableType:
    if not models:
        return Text(
            "no models yet; install one with `remuda pull NAME`, or add a file: `remuda models add FILE.gguf`"
        )
    names = {model.name for model in models}
    columns = [
        Column("MODEL", [model.name for model in models]),
        Column("STATE", [_state(model, names, now) for model in models]),
        Column("BACKEND", [model.backend or UNKNOWN for model in models]),
        Column("SIZE", [size(model.size_bytes) for model in models], needed=1, right=True),
        Column("MEMORY", [_estimate(model.memory_bytes) for model in models], needed=2, right=True),
        Column("CONTEXT", [str(model.context_size or UNKNOWN) for model in models], needed=4, right=True),
        Column("FILES ON", [files_on(model) or UNKNOWN for model in models], needed=3),
    ]
    if wide:
        columns += [
            Column("QUANTISATION", [model.quantisation or UNKNOWN for model in models]),
            Column("SOURCE", [model.source or UNKNOWN for model in models]),
        ]
    found = ((model.name, _problem(model, names)) for model in models)
    problems = (Text(one_line(f"{name}: {problem}")) for name, problem in found if problem)
    stored = (Text(one_line(f"{model.name}: {model.storage}")) for model in models if model.storage)
    return Group(fitting(columns, output), *problems, *stored)


def gallery_table(models: Sequence[GalleryModelView], output: Console) -> RenderableType:
    if not models:
        return Text("no gallery has such a model; hf://OWNER/REPOSITORY and ollama://NAME install others")
    columns = [
        Column("MODEL", [model.name for model in models]),
        Column("ALSO CALLED", [", ".join(model.aliases) or UNKNOWN for model in models], needed=2),
        Column("FOR", [", ".join(model.tags[:_TAGS_MAX]) or UNKNOWN for model in models], needed=3),
        Column("LICENCE", [model.license or UNKNOWN for model in models], needed=4),
        Column("GALLERY", [model.gallery for model in models], needed=5),
        Column("INSTALLED", ["yes" if model.installed else "" for model in models], needed=1),
    ]
    return fitting(columns, output)


def replica_table(replicas: Sequence[ReplicaView], now: datetime, output: Console) -> RenderableType:
    if not replicas:
        return Text("nothing is loaded; a request loads its model, and so does `remuda models load MODEL`")
    columns = [
        Column("MODEL", [one.model for one in replicas]),
        Column("NODE", [one.node or one.node_id for one in replicas]),
        Column("STATE", [replica_state(one, now) for one in replicas]),
        Column("BUSY", [_busy(one) for one in replicas], right=True),
        Column("MEMORY", [_memory(one) for one in replicas], needed=1, right=True),
        Column("USED", [ago(one.last_used, now) if one.last_used else UNKNOWN for one in replicas], needed=2),
        Column("UNLOADS", [_until(one, now) for one in replicas], needed=3),
        Column("BACKEND", [one.backend for one in replicas], needed=4),
    ]
    table = fitting(columns, output)
    over = any(one.parallel and one.in_flight > one.parallel for one in replicas)
    return Group(table, Text(_LET_IN_TOGETHER)) if over else table


def files_on(model: ModelItem) -> str:
    """All who have them: a node that has none gets them from one of these."""
    frontend = ("the frontend",) if model.on_frontend else ()
    storage = ("object storage",) if model.in_storage else ()
    return ", ".join((*model.nodes_with_files, *frontend, *storage))


def _file_missing(model: ModelItem) -> bool:
    """Only of files whose names tell that they are files: others are names that backends understand."""
    nowhere = model.on_frontend is False and not files_on(model) and not model.replicas
    return nowhere and model.file.lower().endswith(".gguf")


def size(count: int) -> str:
    if not count:
        return UNKNOWN
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"


def _estimate(count: int) -> str:
    """Computed from the model's file and its context, and not measured."""
    return f"~{size(count)}" if count else UNKNOWN


def _problem(model: ModelItem, names: Collection[str]) -> str:
    if model.alias and model.alias not in names:
        return f"it is an alias of {model.alias}, which does not exist; add it, or remove the alias"
    if model.backend_unknown and not model.replicas:
        return (
            f"no node has the backend {model.backend}, and no gallery offers it: see remuda backends search "
            f"{pasted(model.backend)}"
        )
    if model.fetching:
        return f"its files are being fetched: remuda ops watch {model.fetching[:8]}"
    if not model.problem and _file_missing(model):
        return (
            f"no node has reported {model.file}, and it is not on this frontend; put it into a models folder"
        )
    return model.problem


def _state(model: ModelItem, names: Collection[str], now: datetime) -> str:
    if model.alias:
        return f"alias of {model.alias}" if model.alias in names else "broken alias"
    loaded = [one for one in model.replicas if one.state == "loaded"]
    if loaded:
        where = "loaded" if len(loaded) == 1 else f"loaded on {len(loaded)}"
        confirmed = any(one.unconfirmed_since is None for one in loaded)
        return where if confirmed else f"{where}, not confirmed"
    if model.fetching:
        return "installing"
    if model.backend_unknown and not model.replicas:
        return "backend not known"
    if model.problem:
        return "failed" if model.failed_at is None else f"failed {ago(model.failed_at, now)}"
    if _file_missing(model):
        return "file not found"
    states = [one.state for one in model.replicas]
    coming = (state for state in states if state != _UNREACHABLE)  # What is loaded elsewhere meanwhile.
    return next(coming, states[0] if states else "not loaded")


def replica_state(replica: ReplicaView, now: datetime) -> str:
    if replica.unconfirmed_since is not None:
        return f"{replica.state}, not confirmed for {span(now - replica.unconfirmed_since)}"
    return f"{replica.state} ({replica.why})" if replica.why else replica.state


def _busy(replica: ReplicaView) -> str:
    return f"{replica.in_flight}/{replica.parallel}" if replica.parallel else str(replica.in_flight)


def _memory(replica: ReplicaView) -> str:
    if not replica.memory_bytes:
        return UNKNOWN
    told = _estimate(replica.memory_bytes) if replica.estimated else size(replica.memory_bytes)
    aside = size(replica.set_aside_bytes)
    more = replica.set_aside_bytes > replica.memory_bytes and aside != size(replica.memory_bytes)
    kept = f" ({aside} set aside)" if more else ""
    return f"{told} {'VRAM' if replica.in_vram else 'RAM'}{kept}"


def _until(replica: ReplicaView, now: datetime) -> str:
    if replica.unloads_at is None:
        return UNKNOWN
    left = replica.unloads_at - now
    return f"in {span(left)}" if left >= timedelta(seconds=1) else "now"
