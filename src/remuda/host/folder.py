"""The data folder: where things are in it, who may read it, and that one process of a kind uses it."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from remuda.core.errors import Misconfigured
from remuda.core.os_errors import os_reason


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
    def joined(self) -> Path:
        """What `remuda join` was told, so that `remuda worker` alone resumes."""
        return self.worker / "joined.json"

    @property
    def registration(self) -> Path:
        """As which node the worker of this folder was last registered, and with which frontend."""
        return self.worker / "registration.json"

    @property
    def leaving(self) -> Path:
        """There while `remuda leave` stops the worker, which then says that it leaves for good."""
        return self.worker / "leaving"

    @property
    def worker_endpoint(self) -> Path:
        """Where the worker of this folder answers, and which frontend it works for."""
        return self.worker / "endpoint.json"

    @property
    def endpoint(self) -> Path:
        """Where the frontend of this folder answers, and the key for commands on this machine."""
        return self.root / "run" / "endpoint.json"

    def prepare(self) -> None:
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.models.mkdir(exist_ok=True)  # People are told to put files there.
            probe = self.root / ".writable"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise Misconfigured(
                f"the data folder {self.root} cannot be used: {os_reason(error)}",
                hint="choose another with --data-dir or REMUDA_DATA_DIR",
            ) from None

    @contextmanager
    def held_by(self, role: str) -> Iterator[None]:
        """This process alone is the folder's `role`; the kernel lets go however the process ends."""
        import fcntl  # Not everywhere: where commands only look at files, they work without it.

        path = self.root / f"{role}.lock"
        with path.open("a+") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                handle.seek(0)
                raise Misconfigured(
                    f"another {role} (process {handle.read().strip() or 'unknown'}) uses {self.root}",
                    hint="stop it, or choose another folder with --data-dir",
                ) from None
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
            yield

    def is_held_by(self, role: str) -> bool:
        """Whether some process is the folder's `role` now."""
        import fcntl

        try:
            with (self.root / f"{role}.lock").open() as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False


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
