"""Which files go with a model that is removed, and which nodes have some of them: never a file that another
model needs. What is on this machine is looked at, so some of it blocks on the disk.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Final

from remuda.core.errors import Invalid
from remuda.fleet.health import Standing
from remuda.fleet.node_views import current_report
from remuda.models.config import ModelConfig
from remuda.models.files import path_fault
from remuda.models.gguf import parts_of
from remuda.models.needed_files import needed_files
from remuda.models.paths import named_files
from remuda.models.reading import read_model
from remuda.ops.ports import View
from remuda.ops.reasons import StepCause, StepReason, because
from remuda.scheduler.model import StoredModel
from remuda.wire.nodes import Report

_REPORTED_WITHIN: Final = timedelta(seconds=60)  # What a worker has fetched, while it lives and is heard.


def removed_paths(
    folder: Path, found: StoredModel, others: Iterable[StoredModel], brought: Iterable[str] = ()
) -> tuple[str, ...]:
    """The files of a model, below folders of models, that no other model has or names. `brought`: what nodes
    have fetched for it, also for what it was before."""
    paths = (*(_needed(folder, found) or _named_by(folder, found)), *brought)
    used = users_of(folder, others, paths)
    return tuple(path for path in dict.fromkeys(paths) if path not in used)


def users_of(folder: Path, models: Iterable[StoredModel], paths: Iterable[str]) -> Mapping[str, str]:
    """Of these files those that a model has or names, also by a folder that they are in; each with the name
    of one such model."""
    users = {path: one.name for one in models for path in (*_needed(folder, one), *_named_by(folder, one))}
    found: dict[str, str] = {}
    for path in paths:
        places = (path, *map(str, PurePosixPath(path).parents))
        user = next((users[place] for place in places if place in users), None)
        if user is not None:
            found[path] = user
    return found


def _needed(folder: Path, model: StoredModel) -> list[str]:
    """As far as this machine has it."""
    config = _config(model)
    return [] if config is None else [file.path for file in needed_files(folder, config, model.manifest)]


def _named_by(folder: Path, model: StoredModel) -> list[str]:
    """Whether or not they are on this machine: below the folder of models, or beside the model's own file."""
    found = [] if model.manifest is None else [file.path for file in model.manifest.files]
    config = _config(model)
    if config is None:
        return found
    own = config.file.removeprefix(f"{folder}/").lstrip("/")
    beside = own.rpartition("/")[0]
    for named in (*named_files(config), *(one.filename for one in config.download_files)):
        path = named.removeprefix(f"{folder}/").strip("/")
        places = (path, f"{beside}/{path}" if beside and path != own else path)
        found += [part for place in dict.fromkeys(places) if not path_fault(place) for part in _parts(place)]
    return found


def _parts(path: str) -> tuple[str, ...]:
    try:
        return parts_of(path)
    except Invalid:  # Named like a part that cannot be: a file of its own.
        return (path,)


def _config(model: StoredModel) -> ModelConfig | None:
    try:
        return read_model(model.text)
    except Invalid:
        return None


# Nodes.


def brought_for(model: str, nodes: Iterable[Standing]) -> Iterator[str]:
    """What their workers have fetched for it, by their reports."""
    for one in nodes:
        report = _last_report(one)
        for file in () if report is None else report.model_files:
            if file.brought and model in file.models and not path_fault(file.path):
                yield file.path


def has_any(node: Standing, paths: Collection[str]) -> bool:
    """As last reported, also in an earlier life."""
    report = _last_report(node)
    if report is None:
        return False
    return report.model_files_more or any(one.path in paths for one in report.model_files)


def may_have_unreported(node: Standing, loads: Iterable[View]) -> bool:
    """Whether one of these loads may have brought files to it since it reported last: a worker that dies soon
    after a load, or during one, has not reported them. Or a part of them, which is reported without paths."""
    report = _last_report(node)
    parts = report is not None and bool(report.model_files_partial)
    for load in loads:
        if any(step.node == node.node.id for step in load.steps):
            ended = load.operation.finished_at
            if parts or ended is None or node.node.last_heartbeat < ended + _REPORTED_WITHIN:
                return True
    return False


def _last_report(standing: Standing) -> Report | None:
    report: Report | None = current_report(standing.node)
    if report is None and standing.node.report is not None:
        report = Report.model_validate_json(standing.node.report.body)
    return report


def why_left(model: str) -> StepReason:
    """Of a node whose worker is LocalAI's, where a person has brought the model's files to a frontend."""
    return because(
        StepCause.UNFIT,
        f"it may have files of {model}, and they stay: LocalAI's worker would remove everything there that "
        "has that name, also files that a person put there; removing the model with --files asks it to",
    )
