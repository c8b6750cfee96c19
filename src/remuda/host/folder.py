"""The data folder: where things are in it, who may read it, that one process of a kind uses it, and the ids
and secrets that are made once and then kept there."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from remuda.core.entropy import Entropy
from remuda.core.errors import Misconfigured
from remuda.core.os_errors import is_full, os_reason


def stable_id(file: Path, entropy: Entropy) -> str:
    """The id in the file; a new one is made where there is none."""
    return kept_text(file, entropy.uuid)


def kept_text(file: Path, make: Callable[[], str]) -> str:
    """The text in the file; where there is none a new one is made, and written whole, for its owner only."""
    try:
        held = file.read_text().strip()
    except FileNotFoundError:
        held = ""
    if not held:
        held = make()
        write_private(file, held + "\n")
    return held


_ROOM_BYTES: Final = 1 << 20  # With less a start would fail half-way: the database alone takes as much.


class DataFolder:
    """Everything a machine keeps. Only its owner can read it: it holds keys."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def database(self) -> Path:
        return self.root / "remuda.db"

    @property
    def nats(self) -> Path:
        return self.root / "nats"

    @property
    def worker(self) -> Path:
        return self.root / "worker"

    @property
    def models(self) -> Path:
        """Models of this machine: their files, and the YAML that describes them."""
        return self.root / "models"

    @property
    def model_store(self) -> Path:
        """The content of models that were installed, by digest. The folder of models has links to it."""
        return self.root / "model-store"

    @property
    def joined(self) -> Path:
        """What was given to `remuda join`, so that `remuda worker` alone resumes."""
        return self.worker / "joined.json"

    @property
    def registration(self) -> Path:
        """As which node the worker of this folder was last registered, and with which frontend."""
        return self.worker / "registration.json"

    @property
    def removed(self) -> Path:
        """There after an administrator removed the node of this folder, until it is registered again."""
        return self.worker / "removed.json"

    @property
    def leaving(self) -> Path:
        """There while `remuda leave` stops the worker, which then says that it leaves for good."""
        return self.worker / "leaving"

    @property
    def worker_endpoint(self) -> Path:
        """Where the worker of this folder answers, and which frontend it works for."""
        return self.worker / "endpoint.json"

    @property
    def worker_ending(self) -> Path:
        """Why the last worker that `remuda up` started here ended."""
        return self.root / "run" / "worker-ending.json"

    @property
    def endpoint(self) -> Path:
        """Where the frontend of this folder answers, and the key for commands on this machine."""
        return self.root / "run" / "endpoint.json"

    def prepare(self) -> None:
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.models.mkdir(exist_ok=True)  # The documentation has people put files there.
            with tempfile.TemporaryFile(dir=self.root) as probe:
                probe.write(bytes(_ROOM_BYTES))
        except OSError as error:
            raise self.unusable(error) from None

    def unusable(self, error: OSError) -> Misconfigured:
        """Why nothing can be written into this folder, and what to do about it."""
        another = "choose another with --data-dir or REMUDA_DATA_DIR"
        if is_full(error) and _no_inodes(self.root):
            return Misconfigured(
                f"the disk of {self.root} has no inodes left: it holds too many files",
                hint=f"remove files there, or {another}",
            )
        if is_full(error):
            why = "is full" if error.errno == errno.ENOSPC else f"cannot be written: {os_reason(error)}"
            return Misconfigured(
                f"the disk of {self.root} {why} ({_free(self.root)})",
                hint=f"free at least {_ROOM_BYTES >> 20} MiB there, or {another}",
            )
        owner = _other_owner(self.root) if isinstance(error, PermissionError) else ""
        whose = f", which belongs to {owner}," if owner else ""
        return Misconfigured(
            f"the data folder {self.root}{whose} cannot be used: {os_reason(error)}", hint=another
        )

    @contextmanager
    def held_by(self, role: str) -> Iterator[None]:
        """This process alone is the folder's `role`; the kernel lets go however the process ends."""
        import fcntl  # Not everywhere: where commands only look at files, they work without it.

        try:
            descriptor = os.open(self.root / f"{role}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self.unusable(error) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise self._taken(role) from None
            try:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
            except OSError as error:
                raise self.unusable(error) from None
            yield
        finally:
            os.close(descriptor)

    def check_free_for(self, role: str) -> None:
        """Raises Misconfigured while another process is the folder's `role`."""
        if self.is_held_by(role):
            raise self._taken(role)

    def _taken(self, role: str) -> Misconfigured:
        try:
            process = (self.root / f"{role}.lock").read_text().strip()
        except OSError:
            process = ""
        running: Mapping[str, object] = {}
        with suppress(Misconfigured):
            running = read_json(self.endpoint) if role == "frontend" else {}
        where = f" and answers at {running['url']}" if process and str(running.get("pid")) == process else ""
        return Misconfigured(
            f"another {role} (process {process or 'unknown'}) uses {self.root}{where}",
            hint="stop it, or choose another folder with --data-dir",
        )

    def was_held_by(self, role: str) -> bool:
        """Whether some process has ever been the folder's `role`."""
        return (self.root / f"{role}.lock").exists()

    def is_held_by(self, role: str) -> bool:
        """Whether some process is the folder's `role` now."""
        import fcntl

        try:
            with (self.root / f"{role}.lock").open() as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except PermissionError:
            return (self.root / f"{role}.lock").exists() if os.access(self.root, os.X_OK) else False
        except OSError:
            return True
        return False


def _no_inodes(folder: Path) -> bool:
    try:
        disk = os.statvfs(folder)
    except (OSError, AttributeError):  # The latter: on Windows.
        return False
    return disk.f_files > 0 and disk.f_favail == 0


def _free(folder: Path) -> str:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return "how much is free is not known"
    return f"{free / (1 << 20):.1f} MiB free"


def _other_owner(path: Path) -> str:
    """Whose the folder is, or the part of its path that exists; empty if it is this user's own."""
    try:
        existing = next(part for part in (path, *path.absolute().parents) if part.exists())
        if existing.stat().st_uid == os.geteuid():
            return ""
        return f"user {existing.owner()}"
    except (OSError, KeyError, AttributeError, NotImplementedError):
        return ""


def write_private(path: Path, content: str) -> None:
    """Write a file whole or not at all, readable by its owner only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def write_json(path: Path, values: Mapping[str, object]) -> None:
    write_private(path, json.dumps(values, indent=2) + "\n")


def read_json(path: Path) -> Mapping[str, object]:
    """The object in the file; empty when there is none. Misconfigured when it is not one."""
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except OSError as error:
        hint = "check the data folder: --data-dir or REMUDA_DATA_DIR names it"
        raise Misconfigured(f"{path} cannot be read: {os_reason(error)}", hint=hint) from None
    except ValueError:
        raise Misconfigured(f"{path} is not JSON", hint="remove it and try again") from None
    if not isinstance(values, dict):
        raise Misconfigured(f"{path} does not hold a JSON object", hint="remove it and try again")
    return values
