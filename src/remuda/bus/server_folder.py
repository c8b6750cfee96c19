"""What the bundled nats-server keeps on disk: configuration, accounts with the revoked users, process id."""

import json
import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import psutil
import structlog
from pydantic import BaseModel

from remuda.bus import credentials
from remuda.bus.credentials import ClusterKeys
from remuda.core.clock import Clock
from remuda.core.errors import Invalid, Misconfigured
from remuda.host.folder import write_private

log = structlog.get_logger(__name__)

_PAYLOAD_BYTES_MAX: Final = 1024 * 1024
_LOG_BYTES_MAX: Final = 8 * 1024 * 1024
_LOG_FILES_MAX: Final = 2


class _Remembered(BaseModel):
    port: int


class ServerFolder:
    def __init__(self, path: Path, keys: ClusterKeys, *, clock: Clock, credentials_ttl: timedelta) -> None:
        path = path.absolute()
        self.config_file = path / "server.json"
        self.account_file = path / "accounts" / f"{keys.account.public_key}.jwt"
        # With our own process id in it, so that a server of an earlier life is not taken for this one's.
        self.server_name = f"remuda-{keys.account.public_key[:16]}-{os.getpid()}"
        self._log_file = path / "server.log"
        self._pid_file = path / "server.pid"
        self._system_file = path / "accounts" / f"{keys.system_account.public_key}.jwt"
        self._keys = keys
        self._clock = clock
        self._credentials_ttl = credentials_ttl

    def prepare(self) -> None:
        """Make the folders and both accounts' files. Raises Misconfigured when it cannot."""
        accounts = self.account_file.parent
        try:
            accounts.mkdir(mode=0o700, parents=True, exist_ok=True)
            for file in accounts.glob("*.jwt"):
                if file not in (self._system_file, self.account_file):
                    file.unlink()  # Left by other keys: they must not give access.
            write_private(self._system_file, self._keys.system_account_jwt(self._clock.now()))
            self.revoke({})
        except OSError as error:
            raise Misconfigured(f"{error.filename} cannot be written: {error.strerror}") from error

    def write_config(self, host: str, port: int) -> None:
        config = {
            "server_name": self.server_name,
            "host": host,
            "port": port,
            "pid_file": str(self._pid_file),
            "log_file": str(self._log_file),
            "logfile_size_limit": _LOG_BYTES_MAX,
            "logfile_max_num": _LOG_FILES_MAX,
            "operator": self._keys.operator_jwt(self._clock.now()),
            "system_account": self._keys.system_account.public_key,
            # Only this resolver both takes new claims while it runs and has them after a restart.
            "resolver": {"type": "full", "dir": str(self.account_file.parent), "allow_delete": False},
            "max_payload": _PAYLOAD_BYTES_MAX,
            # A machine that vanished without a word is noticed within half a minute, not five.
            "ping_interval": "10s",
            "ping_max": 2,
        }
        write_private(
            self.config_file, json.dumps(config, indent=2)
        )  # The server's own syntax includes JSON.

    def remembered_port(self) -> int | None:
        """The port of the last configuration."""
        try:
            return _Remembered.model_validate_json(self.config_file.read_bytes()).port
        except (OSError, ValueError):
            return None

    def revoke(self, users: Mapping[str, datetime]) -> None:
        """Add to the revoked users, less those whose last credentials have expired since: the server takes
        no account of any size."""
        moot = self._clock.now() - self._credentials_ttl
        revoked = {user: since for user, since in {**self._revoked(), **users}.items() if since > moot}
        write_private(self.account_file, self._keys.account_jwt(self._clock.now(), revoked))

    def orphan(self) -> psutil.Process | None:
        """A server still running from this folder."""
        try:
            process = psutil.Process(int(self._pid_file.read_text()))
            program, *arguments = process.cmdline() or [""]
        except (OSError, ValueError, psutil.Error):
            return None
        # The number may belong to another process by now: only a server started from our file is ours.
        ours = Path(program).name.startswith("nats-server") and str(self.config_file) in arguments
        return process if ours else None

    def _revoked(self) -> dict[str, datetime]:
        try:
            return credentials.revocations(self.account_file.read_text())
        except FileNotFoundError:
            return {}
        except (Invalid, UnicodeDecodeError):
            log.error("bus_account_unreadable", file=str(self.account_file))
            return {}
