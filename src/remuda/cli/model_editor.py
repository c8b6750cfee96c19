"""A model's text in a person's editor, again and again until the frontend accepts it or the person gives up.
What was written is never lost: it stays in a file that is named."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from remuda.cli.client import AdminClient, ApiAnswer
from remuda.core.errors import Invalid, RemudaError
from remuda.models.reading import read_model
from remuda.wire.serving import ModelEditConflict, ModelText

_MARK: Final = "#!"  # Lines of ours at the top of the file; they are not part of the text.
_LINE: Final = re.compile(r"\bline (\d+)")
_EDITORS: Final = ("sensible-editor", "nano", "vi")
_CONFLICT: Final = 409
_REFUSED: Final = 400


def edit_until_accepted(client: AdminClient, current: ModelText) -> ApiAnswer | None:
    """The frontend's answer to what was written in the end; None when nothing was changed."""
    command = editor(os.environ)
    folder = Path(tempfile.mkdtemp(prefix="remuda-edit-"))  # Readable by its owner alone.
    file = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', current.name)}.yaml"
    text, message = current.config, ""
    try:
        while True:
            written = _edited(command, file, text, message)
            if written == current.config or not written.strip():
                shutil.rmtree(folder, ignore_errors=True)
                return None
            if message and written == text:
                raise Invalid(f"nothing was changed: {message}", hint=f"what you wrote is in {file}")
            text = written
            answer, message = _offer(client, current, text)
            if answer is None:
                continue
            if answer.status == _CONFLICT:
                current, message = _theirs(answer, client, folder)
                continue
            shutil.rmtree(folder, ignore_errors=True)
            return answer
    except RemudaError as error:
        if not _was_written(file, current.config):
            shutil.rmtree(folder, ignore_errors=True)
        elif str(file) not in error.hint:
            hint = (
                f"{error.hint}; what you wrote is in {file}" if error.hint else f"what you wrote is in {file}"
            )
            raise type(error)(error.message, hint=hint) from error
        raise


def _was_written(file: Path, before: str) -> bool:
    """Whether a person's text is in it."""
    return file.exists() and file.read_bytes() != before.encode()


def _offer(client: AdminClient, current: ModelText, text: str) -> tuple[ApiAnswer | None, str]:
    """The answer, or why the text is not accepted."""
    try:
        read_model(text)  # At once, and in the same words as the frontend's.
        answer = put_text(client, current, text)
        if answer.status == _CONFLICT and b'"current"' in answer.body:
            return answer, ""
        return client.require_success(answer), ""
    except Invalid as error:
        return None, str(error)


def _theirs(answer: ApiAnswer, client: AdminClient, folder: Path) -> tuple[ModelText, str]:
    """Their text beside ours. Saving again is then a choice, and not an accident."""
    theirs = answer.read(ModelEditConflict).current
    path = folder / "theirs.yaml"
    path.write_bytes(theirs.config.encode())
    return (
        theirs,
        f"{theirs.name} was changed by another person meanwhile; their text is in {path}. Saving replaces it",
    )


def _edited(command: list[str], file: Path, text: str, message: str) -> str:
    head = _head(message)
    file.write_bytes((head + text).encode())  # Line ends stay as they are.
    try:
        done = subprocess.run([*command, str(file)], check=False)
    except OSError as error:
        raise Invalid(
            f"the editor {command[0]} cannot be started: {error.strerror}", hint="set EDITOR"
        ) from None
    if done.returncode:
        raise Invalid(f"the editor {command[0]} ended with status {done.returncode}; nothing was changed")
    try:
        lines = file.read_bytes().decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        raise Invalid("what was written is not UTF-8 text; nothing was changed") from None
    while lines and lines[0].startswith(_MARK):
        lines.pop(0)
    return "".join(lines)


def _head(message: str) -> str:
    """Its lines count too: what is said of a line is said of the line that the editor shows."""
    if not message:
        return ""
    lines = ["The model was not changed:", *message.splitlines()]
    shifted = (_LINE.sub(lambda found: f"line {int(found[1]) + len(lines)}", line) for line in lines)
    return "".join(f"{_MARK} {line}\n" for line in shifted)


def editor(environ: Mapping[str, str]) -> list[str]:
    """Invalid where there is none."""
    for name in ("VISUAL", "EDITOR"):
        if words := shlex.split(environ.get(name, "")):
            return words
    found = next((name for name in _EDITORS if shutil.which(name)), "")
    if not found:
        raise Invalid("no editor was found", hint="set EDITOR, or use --set KEY=VALUE or --file FILE")
    return [found]


def put_text(client: AdminClient, current: ModelText, text: str) -> ApiAnswer:
    """Whatever its status."""
    headers = {"If-Match": f'"{current.etag}"'}
    return client.probe(
        "PUT", "api", "models", current.name, "config", body={"config": text}, headers=headers
    )
