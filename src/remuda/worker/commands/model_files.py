"""`model.delete`: a model's files leave the folder of models, and nothing outside that folder ever does."""

import os
import shutil
from pathlib import Path, PurePosixPath

import structlog
from anyio.to_thread import run_sync

from remuda.core.errors import Invalid, Rejected
from remuda.wire.models import ModelDelete, ModelDeleteReply

log = structlog.get_logger(__name__)


class ModelFiles:
    def __init__(self, models: Path) -> None:
        self._models = models

    async def delete(self, request: ModelDelete) -> ModelDeleteReply:
        """Nothing there is as good as removed. Raises Invalid for names that lead elsewhere."""
        await run_sync(self._delete, request.model_name)
        log.info("model_files_deleted", model=request.model_name)
        return ModelDeleteReply(success=True)

    def _delete(self, name: str) -> None:
        path = self._place(name)
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
                return
            for found in _with_companions(path):
                found.unlink(missing_ok=True)
        except OSError as error:
            raise Rejected(f"the files of {name} cannot be removed: {error.strerror}") from error

    def _place(self, name: str) -> Path:
        """Where the model would be. A link on the way there is followed only within the folder."""
        parts = PurePosixPath(name).parts
        if not parts or "\0" in name or name.startswith("/") or ".." in parts:
            raise Invalid(f"model_name: {name[:100]!r} is not the name of a model")
        root = self._models.resolve()
        parent = root.joinpath(*parts[:-1]).resolve()
        if not parent.is_relative_to(root):
            raise Invalid(f"model_name: {name[:100]!r} is outside the models folder")
        return parent / parts[-1]


def _with_companions(path: Path) -> list[Path]:
    """The file and what lies beside it under the same name and a suffix; links themselves, not their ends."""
    try:
        with os.scandir(path.parent) as entries:
            return [
                Path(entry.path)
                for entry in entries
                if entry.name == path.name or entry.name.startswith(f"{path.name}.")
                if not entry.is_dir(follow_symlinks=False)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
