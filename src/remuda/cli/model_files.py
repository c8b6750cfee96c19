"""From the file named on the command line to a model's configuration, and the file to where models are."""

import filecmp
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from remuda.cli.invocation import ClientOptions
from remuda.cli.options import data_folder
from remuda.cli.target import checked_url
from remuda.core.errors import Invalid, RemudaError
from remuda.core.os_errors import os_reason
from remuda.host.folder import read_json
from remuda.models.editing import changes_of, edit
from remuda.models.gguf_file import (
    describe_gguf,
    find_projector,
    missing_bytes,
    open_gguf,
    projector_left_out,
)
from remuda.models.memory import context_problem
from remuda.models.reading import read_model, write_model
from remuda.oci.disk import require_headroom

_TEXT_BYTES_MAX = 1 << 20
_END_BYTES = 1 << 20
_FILES_MAX = 1000
_GGUF = b"GGUF"
_NAME_ONE = "give the .yaml file of a model, or a .gguf file"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model of this machine. `brought` was put into the folder of models for it just now."""

    text: str  # YAML.
    brought: tuple[Path, ...] = ()
    note: str = ""

    def take_back(self) -> None:
        """The frontend does not have the model."""
        for path in self.brought:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def is_gguf(file: Path) -> bool:
    return file.suffix.lower() == ".gguf"


def local_model(file: Path, name: str | None, context: int | None, models: Path | None) -> LocalModel:
    """The model in this file. A GGUF file is brought to this machine's folder of models."""
    if is_gguf(file):
        assert models is not None, "what is elsewhere is uploaded"
        return _from_gguf(file, name, context, models)
    if _begins_as_gguf(file):
        raise Invalid(f"{file} is a GGUF file, but its name says otherwise", hint="rename it to end in .gguf")
    if context is not None:
        raise Invalid("--context is for GGUF files", hint="set context_size in the YAML")
    text = yaml_text(file)
    return LocalModel(text if name is None else edit(text, list(changes_of({"name": name}))))


def _begins_as_gguf(file: Path) -> bool:
    try:
        with file.open("rb") as source:
            return source.read(len(_GGUF)) == _GGUF
    except OSError:  # Said when it is read.
        return False


def yaml_text(file: Path) -> str:
    """Of a model's YAML file, which has been checked. Invalid, naming the file, for any other."""
    try:
        size = file.stat().st_size
        # As bytes: line ends stay as they are. A mark of the byte order is none of the text.
        text = file.read_bytes().decode("utf-8-sig") if size <= _TEXT_BYTES_MAX else ""
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {_reason(error)}", hint=_NAME_ONE) from None
    except UnicodeDecodeError:
        raise Invalid(f"{file} is not a text file", hint=_NAME_ONE) from None
    if not text.strip():
        raise Invalid(f"{file} is {'empty' if not size else 'too large for a YAML file'}", hint=_NAME_ONE)
    read_model(text, where=str(file))
    return text


def of_file(error: RemudaError, file: str) -> RemudaError:
    """What a frontend has said of a line of its text, with the file's name, as it is said of what is found
    here."""
    if isinstance(error, Invalid) and error.message.startswith("line "):
        return Invalid(f"{file}, {error.message}", hint=error.hint, param=error.param)
    return error


def yaml_files(folder: Path) -> list[Path]:
    """Those of models, in order. Invalid where there are none."""
    try:
        found = sorted(one for one in folder.iterdir() if one.suffix in (".yaml", ".yml") and one.is_file())
    except OSError as error:
        raise Invalid(f"{folder} cannot be read: {os_reason(error)}") from None
    if not found:
        raise Invalid(f"{folder} has no .yaml files", hint="give the folder that has the models' YAML files")
    if len(found) > _FILES_MAX:
        raise Invalid(f"{folder} has {len(found)} .yaml files, more than {_FILES_MAX}")
    return found


def _reason(error: OSError) -> str:
    return "it is a folder" if isinstance(error, IsADirectoryError) else os_reason(error)


def models_folder(options: ClientOptions, environ: Mapping[str, str]) -> Path | None:
    """Of the frontend that runs on this machine, or will, or of this machine's worker. None if the frontend
    that is asked is elsewhere, and nothing here works for it: it would never see a file."""
    folder = data_folder({"data_dir": options.data_dir}, environ)
    running, joined = read_json(folder.endpoint), read_json(folder.joined)
    named = options.url or environ.get("REMUDA_URL")
    if named and not (options.data_dir or environ.get("REMUDA_DATA_DIR")):
        url = checked_url(named, "--url" if options.url else "REMUDA_URL")
        if joined.get("register_to") != url and not _is_frontend_here(url, running.get("port")):
            return None
    configured = running.get("models") or joined.get("models_path")
    if isinstance(configured, str) and Path(configured) != folder.models and not Path(configured).is_dir():
        raise Invalid(
            f"the models folder {configured} does not exist",
            hint="create it, or start Remuda again with another --models-path",
        )
    return Path(configured) if isinstance(configured, str) else folder.models


def _is_frontend_here(url: str, port: object) -> bool:
    """Whether the frontend at the URL is that of this machine's data folder, which has this port."""
    parts = urlsplit(url)
    same_port = port == (parts.port or (443 if parts.scheme == "https" else 80))
    return same_port and _is_this_machine(parts.hostname or "")


def _is_this_machine(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_is_own(family, address) for family, _, _, _, address in found)


def _is_own(family: int, address: tuple[object, ...]) -> bool:
    """Only a machine's own addresses can be bound to."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address[0], 0))
        except OSError:
            return False
    return True


def _from_gguf(file: Path, name: str | None, context: int | None, models: Path) -> LocalModel:
    found = open_gguf(file)
    if problem := context_problem(context, found.header.context_length):
        raise Invalid(problem.replace("context_size", "--context", 1))
    projector = find_projector(found)
    brought: list[Path] = []
    try:
        for part in (*found.parts, *([projector] if projector else [])):
            brought += _bring(part, models)
    except BaseException:
        LocalModel("", tuple(brought)).take_back()
        raise
    config = describe_gguf(
        found.first.name, found.header, found.first.name, projector.name if projector else ""
    )
    changes = {"name": name} if name else {}
    text = write_model(
        config.model_copy(update={**changes, **({"context_size": context} if context else {})})
    )
    return LocalModel(text, tuple(brought), projector_left_out(found))


def _bring(file: Path, models: Path) -> list[Path]:
    """Linked where that is possible, for models are large; copied with a bar elsewhere. Answers what was
    made: nothing where the file was there."""
    target = models / file.name
    try:
        models.mkdir(parents=True, exist_ok=True)
        if target.exists():
            if target.samefile(file) or _same_content(target, file):
                return []
            if missing_bytes(target):
                raise Invalid(f"{target} is an unfinished copy", hint="remove it, then try again")
            raise Invalid(f"{target} exists and is a different file", hint="rename one of them")
        try:
            os.link(file.resolve(), target)
        except OSError:
            _copy(file, target)
    except OSError as error:
        raise Invalid(f"{file} cannot be copied to {models}: {error.strerror}") from None
    return [target]


def _same_content(one: Path, other: Path) -> bool:
    """Read to the end where nothing differs before: fine-tuned models are alike but for what is within."""
    if _ends(one) != _ends(other):
        return False
    filecmp.clear_cache()
    return filecmp.cmp(one, other, shallow=False)


def _ends(file: Path) -> tuple[int, bytes, bytes]:
    """Its size, how it begins and how it ends: by these most models differ."""
    with file.open("rb") as source:
        first = source.read(_END_BYTES)
        size = source.seek(0, os.SEEK_END)
        source.seek(max(size - _END_BYTES, 0))
        return size, first, source.read(_END_BYTES)


def _copy(file: Path, target: Path) -> None:
    """Whole or not at all: a partial name until the last byte is there."""
    from rich.console import Console
    from rich.progress import wrap_file

    size = file.stat().st_size
    require_headroom(target.parent, size, file.name)  # As for an install.
    partial = target.with_name(f".{target.name}.partial")
    quiet = not sys.stderr.isatty()
    try:
        with file.open("rb") as source, partial.open("wb") as sink:
            shown = wrap_file(
                source, size, description=f"Copying {file.name}", console=Console(stderr=True), disable=quiet
            )
            with shown as read:
                shutil.copyfileobj(read, sink, 1 << 20)
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
