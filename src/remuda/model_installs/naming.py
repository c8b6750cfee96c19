"""What a model is called when no name is given, and in which folder its files are. Pure."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

from remuda.core.errors import Invalid
from remuda.models.files import path_fault
from remuda.models.gguf_file import name_from
from remuda.models.reading import check_name, check_new_name
from remuda.models.source_refs import (
    DEFAULT_TAG,
    OLLAMA_OWNER,
    BucketObject,
    GithubFile,
    HubModel,
    LocalPath,
    ModelSource,
    OciModel,
    OllamaModel,
    UploadedFiles,
    WebFile,
    WheelFile,
)

_PACKAGING: Final = re.compile(r"[-_.]gguf$", re.IGNORECASE)
_ODD: Final = re.compile(r'[\\:*?"<>|\s]+')
_MARK_CHARS: Final = 8
NAME_BYTES_MAX: Final = 200  # File systems allow 255, and `folder_of` and partial files add to them.


def default_name(source: ModelSource) -> str:
    """As people would call it: without its precision and packaging. Invalid where nothing is left of it."""
    name = _named(source)
    if not name:
        raise Invalid(f"{source} does not say what the model is called", hint="name it with --name")
    return name


def _named(source: ModelSource) -> str:
    match source:
        case HubModel(repo, path):
            return name_from(path) if path.endswith(".gguf") else _bare(path or repo)
        case OllamaModel(owner, name, tag):
            named = name if owner == OLLAMA_OWNER else f"{owner}/{name}"
            return named if tag == DEFAULT_TAG else f"{named}:{tag}"
        case WebFile(url):
            return name_from(unquote(urlsplit(url).path))
        case OciModel(reference):
            repository, _, tag = reference.partition("@")[0].rpartition("/")[2].partition(":")
            return f"{_bare(repository)}:{tag}" if tag not in ("", DEFAULT_TAG) else _bare(repository)
        case BucketObject(_, key):
            return _bare(key.rstrip("/"))
        case GithubFile(_, _, path) | LocalPath(path) | WheelFile(_, _, path):
            return _bare(path)
        case UploadedFiles():
            return ""  # Its files say more: see `uploaded_name`.


def uploaded_name(paths: Sequence[str]) -> str:
    """What a model of these files is called: by its GGUF file, which has to be alone or the first of a split
    one; empty where they do not tell."""
    named = {_bare(path) for path in paths if path.lower().endswith(".gguf") and not _is_projector(path)}
    return named.pop() if len(named) == 1 else ""


def _is_projector(path: str) -> bool:
    return "mmproj" in PurePosixPath(path).name.lower()


def _bare(path: str) -> str:
    return _PACKAGING.sub("", name_from(PurePosixPath(path).name))


def checked_name(name: str) -> str:
    """The name itself. Invalid for one that no model could have."""
    check_name(name)
    check_new_name(name)
    if (length := len(name.encode())) > NAME_BYTES_MAX:
        raise Invalid(
            f"name: {length} bytes (as UTF-8); at most {NAME_BYTES_MAX} are accepted, for the model's folder "
            "is named after it",
            hint="choose a shorter one with --name",
            param="name",
        )
    return name


def folder_of(name: str) -> str:
    """Where its files are, below a folder of models: another one for every name, on any file system."""
    if not path_fault(name) and not name.startswith("."):
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:_MARK_CHARS]
    return f"{_ODD.sub('-', name).strip('. ')}-{mark}"
