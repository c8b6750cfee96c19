"""The bundled server's folder: what is remembered, what is forgotten, what is thrown out."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from remuda.bus.credentials import ClusterKeys, revocations
from remuda.bus.server import ServerFolder
from remuda.core.entropy import SeededEntropy
from remuda.core.errors import Misconfigured
from tests.support.clocks import HandClock

KEYS = ClusterKeys.create(SeededEntropy(1))
START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> HandClock:
    return HandClock(START)


@pytest.fixture
def folder(tmp_path: Path, clock: HandClock) -> ServerFolder:
    folder = ServerFolder(tmp_path / "nats", KEYS, clock=clock, credentials_ttl=timedelta(days=1))
    folder.prepare()
    return folder


def test_revocations_add_up(folder: ServerFolder) -> None:
    folder.revoke({"UA": START})
    folder.revoke({"UB": START})
    assert revocations(folder.account_file.read_text()) == {"UA": START, "UB": START}


def test_a_revocation_that_outlived_all_credentials_is_forgotten(
    folder: ServerFolder, clock: HandClock
) -> None:
    folder.revoke({"UA": START})
    clock.advance(timedelta(days=1, seconds=1))
    folder.revoke({"UA": START, "UB": clock.now()})
    assert revocations(folder.account_file.read_text()).keys() == {"UB"}


def test_preparing_again_keeps_revocations(folder: ServerFolder) -> None:
    folder.revoke({"UA": START})
    folder.prepare()
    assert "UA" in revocations(folder.account_file.read_text())


def test_accounts_of_other_keys_are_thrown_out(folder: ServerFolder) -> None:
    stale = folder.account_file.with_name("AOTHER.jwt")
    stale.write_text("x")
    folder.prepare()
    assert not stale.exists()


def test_a_damaged_account_file_is_made_anew(folder: ServerFolder) -> None:
    folder.account_file.write_text("damaged")
    folder.prepare()
    assert revocations(folder.account_file.read_text()) == {}


def test_the_port_is_remembered(folder: ServerFolder) -> None:
    assert folder.remembered_port() is None
    folder.write_config("127.0.0.1", 4300)
    assert folder.remembered_port() == 4300


def test_no_monitoring_port_and_no_storage_are_configured(folder: ServerFolder) -> None:
    folder.write_config("127.0.0.1", 4300)
    config = json.loads(folder.config_file.read_text())
    assert not {"http", "http_port", "https_port", "jetstream", "cluster", "leafnodes"} & config.keys()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, clock: HandClock) -> None:
    (tmp_path / "file").write_text("")
    folder = ServerFolder(tmp_path / "file" / "nats", KEYS, clock=clock, credentials_ttl=timedelta(days=1))
    with pytest.raises(Misconfigured, match="cannot be written"):
        folder.prepare()
