"""What a model's configuration wants fetched: the model itself where `parameters.model` is a source,
`download_files`, and `artifacts`, which are snapshots of repositories (contract 6.1). Pure.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from remuda.core.errors import Invalid
from remuda.models.config import Artifact, ModelConfig
from remuda.models.files import Manifest, checked_path
from remuda.models.source_refs import HubModel, LocalPath, ModelSource, UploadedFiles, is_source, parse_source

MODEL: Final = "parameters.model"
_FILE: Final = "file:"
_ARTIFACT: Final = "artifact:"
_ARTIFACTS_FOLDER: Final = "artifacts"  # Below the model's own.
_HUB_TYPES: Final = frozenset({"", "huggingface", "hf"})
_HUB_TOKENS: Final = frozenset({"", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN"})


def wanted_sources(config: ModelConfig) -> Mapping[str, str]:
    """What is wanted, each with all that tells where it comes from: two configurations that want the same
    bytes at the same places have the same."""
    found = {MODEL: config.file.strip()} if is_source(config.file) else {}
    for file in config.download_files:
        found[file_key(file.filename)] = f"{file.uri} {file.sha256.lower()}".strip()
    for one in config.artifacts:
        found[artifact_key(one)] = json.dumps(one.source.model_dump(mode="json"), sort_keys=True)
    return found


def file_key(filename: str) -> str:
    return f"{_FILE}{filename}"


def artifact_key(artifact: Artifact) -> str:
    return f"{_ARTIFACT}{artifact.target or artifact.name}"


def is_complete(config: ModelConfig, manifest: Manifest | None) -> bool:
    """Whether just what this configuration wants was fetched for it."""
    wanted = wanted_sources(config)
    return wanted == fetched_sources(wanted, manifest)


def fetched_sources(wanted: Mapping[str, str], manifest: Manifest | None) -> Mapping[str, str]:
    """The same of what was fetched. Releases that fetched only what galleries and sources had did not write
    down what for: there the files tell."""
    if manifest is None:
        return {}
    if manifest.fetched is not None:
        return {one.key: one.source for one in manifest.fetched}
    paths = [f"/{file.path}" for file in manifest.files]
    return {key: source for key, source in wanted.items() if key != MODEL and _is_among(key, paths)}


def _is_among(key: str, paths: list[str]) -> bool:
    if key.startswith(_FILE):
        return any(path.endswith(f"/{key.removeprefix(_FILE)}") for path in paths)
    return any(f"/{_ARTIFACTS_FOLDER}/{key.removeprefix(_ARTIFACT)}/" in path for path in paths)


def as_fetched(config: ModelConfig, manifest: Manifest | None) -> ModelConfig:
    """The configuration that a model is loaded with: sources are replaced by what has come from them, and
    what its text leaves open is as the model's files say."""
    if manifest is None or not manifest.fetched:
        return config
    wanted = wanted_sources(config)
    places = {one.key: one.place for one in manifest.fetched if wanted.get(one.key) == one.source}
    laid: dict[str, Any] = json.loads(manifest.laid) if places.get(MODEL) and manifest.laid else {}
    parameters: dict[str, Any] = laid.pop("parameters", {})
    named = {"model": places[MODEL]} if places.get(MODEL) else {}
    folders = {one.name: places.get(artifact_key(one), "") for one in config.artifacts}
    if main := main_artifact_of(config):
        named["model"] = places.get(artifact_key(main), "") or config.file
        folders.pop(main.name, None)
    options = [f"{name}:{folder}" for name, folder in folders.items() if name and folder]
    more = tuple(option for option in options if option not in config.options)
    if not (laid or named or more):
        return config
    given = config.model_dump(mode="json", exclude_defaults=True)
    changed = {**laid, **given, "parameters": {**parameters, **given.get("parameters", {}), **named}}
    return ModelConfig.model_validate(
        {**changed, "options": [*config.options, *more], "unknown": config.unknown}
    )


def main_artifact_of(config: ModelConfig) -> Artifact | None:
    """The one that is the model itself: the first, where nothing else is, or its repository is named."""
    first = next(iter(config.artifacts), None)
    return first if first is not None and config.file in ("", first.source.repo) else None


def checked_sources(config: ModelConfig) -> list[ModelSource]:
    """Where all of it comes from. Invalid, naming the field, for what can never be fetched."""
    found: list[ModelSource] = []
    if is_source(config.file):
        found.append(_checked(MODEL, config.file))
    places = set[str]()
    for number, file in enumerate(config.download_files):
        field = f"download_files[{number}]"
        found.append(_checked(f"{field}.uri", file.uri))
        _take(places, file.filename, f"{field}.filename")
    folders = set[str]()
    for number, one in enumerate(config.artifacts):
        field = f"artifacts[{number}]"
        with _named(field):
            found.append(artifact_source(one))
            folder = artifact_folder(one)
            checked_path(folder)
        _take(folders, folder, f"{field}.target")
    return found


def local_sources(config: ModelConfig) -> list[LocalPath]:
    """Files of the frontend's machine among them. As `checked_sources`."""
    return [one for one in checked_sources(config) if isinstance(one, LocalPath)]


def _checked(field: str, text: str) -> ModelSource:
    with _named(field):
        source = parse_source(text)
        if isinstance(source, UploadedFiles):
            raise Invalid(
                f"{source} is an upload, which only an install can take up",
                hint=f"remuda models install {source}",
            )
    return source


@contextmanager
def _named(field: str) -> Iterator[None]:
    """What turns out to be invalid here is said with this field."""
    try:
        yield
    except Invalid as error:
        raise Invalid(f"{field}: {error.message}", hint=error.hint, param=field) from None


def _take(places: set[str], place: str, field: str) -> None:
    if place in places:
        raise Invalid(f"{field}: {place!r} is there twice", param=field)
    places.add(place)


def artifact_folder(artifact: Artifact) -> str:
    """Below the model's own folder."""
    name = artifact.target or artifact.name
    if not name:
        raise Invalid(f"the artifact from {artifact.source.repo or 'nowhere'} has neither name nor target")
    return f"{_ARTIFACTS_FOLDER}/{name.strip('/')}"


def artifact_source(artifact: Artifact) -> HubModel:
    """Invalid for one that is not on Hugging Face."""
    source, name = artifact.source, artifact.name or artifact.target
    if source.type not in _HUB_TYPES:
        raise Invalid(
            f"the artifact {name} is of the type {source.type[:40]!r}, and huggingface is the only one known"
        )
    if source.token_env not in _HUB_TOKENS:
        raise Invalid(
            f"the artifact {name} wants a token from {source.token_env}, which is read from HF_TOKEN alone",
            hint="set HF_TOKEN, or put the token into the credentials file",
        )
    revision = f"@{source.revision}" if source.revision else ""
    parsed = parse_source(f"hf://{source.repo}{revision}")
    assert isinstance(parsed, HubModel), "it says so"
    return parsed
