"""Settings that cannot be used stop the start at once, in words that say what to change."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest

from remuda.assembly.frontend import running_frontend
from remuda.assembly.settings import FrontendSettings
from remuda.core.errors import Misconfigured
from remuda.fleet.admission import AdmissionPolicy
from tests.support.nats_servers import make_certificates
from tests.support.processes import Ranch


@pytest.fixture(autouse=True)
def _nothing_is_left_running(place: Ranch) -> Iterator[None]:
    yield
    assert place.processes() == []


def refused(place: Ranch, *arguments: str, code: int = 2, environ: Mapping[str, str] | None = None) -> str:
    """What it says; without a stack trace, and with nothing left running."""
    done = place.invoke(*arguments, data="refused", **(environ or {}))
    assert done.exit_code == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "child_started" not in done.stderr
    return done.stderr


def test_data_folder_that_cannot_be_written(place: Ranch) -> None:
    (place.folder / "refused").write_text("a file, not a folder")
    said = refused(place, "up", "--port", "0")
    assert str(place.folder / "refused") in said
    assert "--data-dir or REMUDA_DATA_DIR" in said


@pytest.mark.parametrize(
    ("variable", "value", "accepted"),
    [
        ("REMUDA_NODE_OFFLINE_AFTER", "soon", "a duration such as 500ms, 10s, 1m30s or 24h"),
        ("LOCALAI_HEARTBEAT_INTERVAL", "often", "a duration such as 500ms, 10s, 1m30s or 24h"),
        ("REMUDA_PORT", "http", "a port from 0 to 65535"),
        ("REMUDA_NODE_NAME", "n" * 256, "up to 255 bytes"),
    ],
)
def test_value_that_cannot_be_read(place: Ranch, variable: str, value: str, accepted: str) -> None:
    said = refused(place, "up", environ={variable: value})
    assert variable in said
    assert accepted in said


def test_database_of_a_newer_release(place: Ranch) -> None:
    folder = place.folder / "refused"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "remuda.db")) as database, database:
        database.execute("CREATE TABLE schema_info (version, min_compatible_version, updated_at)")
        database.execute("INSERT INTO schema_info VALUES (1000, 999, 0)")
    said = refused(place, "up", "--port", "0")
    assert "was made by a newer release" in said
    assert "install the newer release here too" in said


def test_certificate_that_cannot_be_used(place: Ranch) -> None:
    files = make_certificates(place.folder)
    missing = place.folder / "missing.pem"
    tls = ("--tls-key", str(files.server.key), "--tls-cert", str(missing))
    said = refused(place, "up", "--port", "0", *tls)
    assert f"--tls-cert {missing} cannot be read" in said
    assert "correct the path" in said


@pytest.mark.anyio
async def test_certificate_and_key_that_do_not_belong_together(place: Ranch) -> None:
    files = make_certificates(place.folder)
    settings = FrontendSettings(
        data_dir=place.folder / "refused", tls_cert=files.client.cert, tls_key=files.server.key
    )
    with pytest.raises(Misconfigured, match="are not a certificate and its key"):
        async with running_frontend(settings, AdmissionPolicy(auto_approve=False)):
            pass


def test_bus_address_that_is_none(place: Ranch) -> None:
    said = refused(place, "up", "--port", "0", "--nats-url", "http://user:hunter2@bus")
    assert "is not a bus address" in said
    assert "nats://HOST:PORT" in said
    assert "hunter2" not in said


def test_database_that_cannot_be_reached(place: Ranch) -> None:
    database = {"REMUDA_DATABASE_URL": "postgresql://remuda:hunter2@127.0.0.1:1/fleet"}
    said = refused(place, "frontend", "--port", "0", code=7, environ=database)
    assert "Connection refused" in said
    assert "hint: check that it runs" in said
    assert "hunter2" not in said


def test_worker_that_belongs_to_no_frontend(place: Ranch) -> None:
    assert "remuda join URL --token TOKEN" in refused(place, "worker")
