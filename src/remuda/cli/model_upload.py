"""Uploads a model's files to a frontend on another machine. What has arrived stays there, so a break of the
connection costs nothing but time, and the same command resumes where an earlier one ended.
"""

import base64
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final

import click

from remuda.cli.client import AdminClient
from remuda.cli.commands import connect
from remuda.cli.exits import Interrupted
from remuda.cli.invocation import ClientOptions
from remuda.cli.output import one_line
from remuda.core.errors import (
    Conflict,
    FrontendUnreachable,
    Invalid,
    NotFound,
    PeerFailed,
    RemudaError,
    Unavailable,
)
from remuda.core.os_errors import os_reason
from remuda.hubs.local_files import list_files
from remuda.model_installs.arrival import Arrival, described
from remuda.model_installs.naming import default_name, folder_of, uploaded_name
from remuda.model_installs.upload_rules import FILES_OF_MODEL_MAX, IDLE_MAX, written_metadata
from remuda.models.gguf_file import find_projector, open_gguf, projector_left_out
from remuda.models.source_refs import LocalPath
from remuda.wire.model_uploads import ModelUploadView, UploadedFileView
from remuda.wire.sizes import install_size

_PART_BYTES: Final = 32 << 20  # Sent by one request, and held in memory.
_SLICE_BYTES: Final = 256 << 10
_READ_BYTES: Final = 1 << 20
_ANSWER_S: Final = 120.0  # A slow disk has to write what was sent.
_TRIES_MAX: Final = 12  # In a row without one new byte: about five minutes.
_PAUSE_MOST_S: Final = 30.0
_ID_CHARS: Final = 32
_LINE_EVERY: Final = 0.1  # Of the whole, where there is no terminal.
_KEPT_H: Final = IDLE_MAX.total_seconds() / 3600
_PATH: Final = ("api", "model-uploads")
_TUS: Final = {"Tus-Resumable": "1.0.0"}

Sleep = Callable[[float], object]
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class FileToSend:
    place: Path
    path: str  # Below the model's folder.
    size: int
    sha256: str = ""


def upload_model(
    options: ClientOptions, place: Path, name: str = "", *, sleep: Sleep | None = None
) -> tuple[str, str]:
    """The source that installs the model of this file or folder, all of which has been uploaded; and what to
    call it. Interrupted, saying how to go on, by Ctrl-C."""
    found = model_files(place)
    if not place.is_dir() and (note := projector_left_out(open_gguf(place))):
        click.echo(one_line(f"note: {note}"), err=True)
    called = name or _name_of(place, found)
    with connect(options, _ANSWER_S) as client:
        try:
            files = _hashed(found, quiet=options.as_json)
            upload = _id_of(files)
            begun = [_announced(client, upload, file, called) for file in files]
            _Transfer(client, files, begun, sleep or Event().wait, quiet=options.as_json).run()
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted; what has arrived at the frontend is kept",
                hint=f"the same command goes on from there, within {_KEPT_H:.0f} hours",
            ) from None
    return f"upload:{upload}", called


def _name_of(place: Path, files: Sequence[FileToSend]) -> str:
    if place.is_dir():
        return default_name(LocalPath(str(place.resolve())))
    return uploaded_name([file.path for file in files])


def model_files(place: Path) -> list[FileToSend]:
    """The parts of a GGUF model and its projector, or all files of a folder. Invalid where one is missing."""
    if place.is_dir():
        found = [
            FileToSend(place / one.path, one.path, one.size or 0)
            for one in list_files(LocalPath(str(place.resolve())))
        ]
        if not any(one.path.endswith((".gguf", ".safetensors")) for one in found):
            raise Invalid(
                f"{place} has no model in it",
                hint="a model is a GGUF file, or a folder with config.json and safetensors",
            )
        _check_folder(place.resolve(), [one.path for one in found])
    else:
        model = open_gguf(place)
        projector = find_projector(model)
        parts = (*model.parts, *([projector] if projector else []))
        found = [FileToSend(one, one.name, one.stat().st_size) for one in parts]
    if len(found) > FILES_OF_MODEL_MAX:
        raise Invalid(f"{place} has {len(found)} files; an upload has at most {FILES_OF_MODEL_MAX}")
    return found


def _check_folder(folder: Path, paths: Sequence[str]) -> None:
    """Invalid for one that could not be installed, before anything is sent."""
    name = folder.name
    if folder_of(name) == name:  # Else its files will be in a folder of another name there.
        described(Arrival(name, folder.parent, [f"{name}/{path}" for path in paths]))


def _hashed(files: Sequence[FileToSend], *, quiet: bool) -> list[FileToSend]:
    """Before anything is sent: the same files are then the same upload, and what arrives can be checked."""
    done: list[FileToSend] = []
    quiet = quiet or not sys.stderr.isatty()
    with _bar("Reading", sum(file.size for file in files), quiet=quiet) as advance:
        for file in files:
            hashed = hashlib.sha256()
            try:
                with file.place.open("rb") as source:
                    while chunk := source.read(_READ_BYTES):
                        hashed.update(chunk)
                        advance(len(chunk))
            except OSError as error:
                raise Invalid(f"{file.place} cannot be read: {os_reason(error)}") from None
            done.append(FileToSend(file.place, file.path, file.size, hashed.hexdigest()))
    return done


def _id_of(files: Sequence[FileToSend]) -> str:
    lines = "".join(f"{file.path} {file.size} {file.sha256}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()[:_ID_CHARS]


def _announced(client: AdminClient, upload: str, file: FileToSend, called: str) -> UploadedFileView:
    """Refused here, before hours of uploading, if it does not fit or another model is called so."""
    metadata = {"filename": file.path, "upload": upload, "sha256": file.sha256}
    metadata |= {"model": called} if called else {}
    headers = {
        **_TUS,
        "Upload-Length": str(file.size),
        "Upload-Metadata": written_metadata(metadata),
    }
    try:
        answer = client.require_success(client.probe("POST", *_PATH, headers=headers))
    except NotFound as error:
        raise Invalid(
            "this frontend takes no uploads: it runs an earlier release",
            hint="update it, or copy the file to its machine and run this there",
        ) from error
    return answer.read(UploadedFileView)


class _Transfer:
    def __init__(
        self,
        client: AdminClient,
        files: Sequence[FileToSend],
        begun: Sequence[UploadedFileView],
        sleep: Sleep,
        *,
        quiet: bool,
    ) -> None:
        self._client = client
        self._files = files
        self._begun = begun
        self._sleep = sleep
        self._quiet = quiet

    def run(self) -> None:
        total = sum(file.size for file in self._files)
        there = sum(one.offset for one in self._begun)
        name = self._files[0].place.name
        if there and not self._quiet:
            words = f"{name}: {install_size(there)} of {install_size(total)} are there already"
            click.echo(one_line(words), err=True)
        with _bar(f"Uploading {name}", total, start=there, quiet=self._quiet) as advance:
            for file, begun in zip(self._files, self._begun, strict=True):
                self._send(file, begun, advance)

    def _send(self, file: FileToSend, begun: UploadedFileView, advance: Advance) -> None:
        offset, tries = begun.offset, 0
        while offset < file.size:
            try:
                reached = offset + self._send_part(file, begun, offset, advance)
            except RemudaError as error:
                if not _may_pass(error) or tries >= _TRIES_MAX:
                    raise _with_way_on(error) from error
                self._pause(error, tries)
                reached = self._where(begun, offset)
            tries = 0 if reached > offset else tries + 1
            offset = reached

    def _send_part(self, file: FileToSend, begun: UploadedFileView, offset: int, advance: Advance) -> int:
        """How many bytes were taken."""
        try:
            with file.place.open("rb") as source:
                source.seek(offset)
                part = source.read(min(_PART_BYTES, file.size - offset))
        except OSError as error:
            raise Invalid(f"{file.place} cannot be read: {os_reason(error)}") from None
        if not part:
            raise Invalid(f"{file.place} has become shorter during the upload")
        headers = {
            **_TUS,
            "Content-Type": "application/offset+octet-stream",
            "Upload-Offset": str(offset),
            "Upload-Checksum": f"sha256 {base64.b64encode(hashlib.sha256(part).digest()).decode()}",
        }
        sent = _Sent(part, advance)
        try:
            answer = self._client.send("PATCH", *_PATH, begun.id, body=sent, headers=headers)
            self._client.require_success(answer)
        except BaseException:
            advance(-sent.count)  # Shown again once it is known to have arrived.
            raise
        return len(part)

    def _where(self, begun: UploadedFileView, before: int) -> int:
        """How much has arrived; as before where that cannot be found out now."""
        try:
            view = self._client.get(*_PATH, begun.id).read(ModelUploadView)
        except (FrontendUnreachable, Unavailable, PeerFailed):
            return before
        return next(one.offset for one in view.files if one.id == begun.id)

    def _pause(self, error: RemudaError, tries: int) -> None:
        if isinstance(error, Conflict):
            return  # It has another length by now.
        pause = min(2.0**tries, _PAUSE_MOST_S)
        if not self._quiet:
            click.echo(one_line(f"{error.message}; trying again in {pause:.0f} s"), err=True)
        self._sleep(pause)


class _Sent:
    """A part as a body, counted as it goes."""

    def __init__(self, part: bytes, advance: Advance) -> None:
        self._part = part
        self._advance = advance
        self.count = 0

    def __len__(self) -> int:
        return len(self._part)

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._part), _SLICE_BYTES):
            piece = self._part[start : start + _SLICE_BYTES]
            yield piece
            self.count += len(piece)
            self._advance(len(piece))


def _may_pass(error: RemudaError) -> bool:
    """Whether it is worth another try. A full disk waits for a person."""
    if isinstance(error, Unavailable):
        return error.reason != "disk_full"
    return isinstance(error, FrontendUnreachable | PeerFailed | Conflict)


def _with_way_on(error: RemudaError) -> RemudaError:
    kept = f"what has arrived is kept for {_KEPT_H:.0f} hours; the same command goes on from there"
    hint = f"{error.hint}; {kept}" if error.hint else kept
    return type(error)(error.message, hint=hint, reason=error.reason)


@contextmanager
def _bar(words: str, total: int, *, quiet: bool, start: int = 0) -> Iterator[Advance]:
    """On standard error: a bar on a terminal, now and then a line elsewhere."""
    if quiet:
        yield lambda count: None
    elif not sys.stderr.isatty():
        yield _Lines(words, total, start).advance
    else:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(words, total=total, completed=start)
            yield lambda count: progress.advance(task, count)


class _Lines:
    def __init__(self, words: str, total: int, done: int) -> None:
        self._words = words
        self._total = total
        self._done = done
        self._told = done

    def advance(self, count: int) -> None:
        self._done += count
        if self._done - self._told < self._total * _LINE_EVERY and self._done < self._total:
            return
        if self._done > self._told:
            self._told = self._done
            words = f"{self._words}: {install_size(self._done)} of {install_size(self._total)}"
            click.echo(one_line(words), err=True)
