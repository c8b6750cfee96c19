"""`remuda config check` shows every setting, hides every secret, and refuses what cannot be used."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from remuda.assembly.settings import UpSettings, WorkerSettings
from remuda.cli.exits import Exit
from remuda.cli.verbs import root


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return {"REMUDA_DATA_DIR": str(tmp_path)}


def check(environ: dict[str, str], *arguments: str) -> Result:
    return CliRunner().invoke(root, ["config", "check", *arguments], env=environ)


def test_every_setting_of_the_role_is_listed(environ: dict[str, str]) -> None:
    up = json.loads(check(environ, "--json").stdout)["settings"]
    worker = json.loads(check(environ, "--json", "--role", "worker").stdout)["settings"]

    assert {row["setting"] for row in up} == UpSettings.model_fields.keys()
    assert {row["setting"] for row in worker} == WorkerSettings.model_fields.keys()


def test_a_value_is_shown_with_its_origin(environ: dict[str, str]) -> None:
    rows = check({**environ, "LOCALAI_HEARTBEAT_INTERVAL": "1m30s", "REMUDA_LAN": "1"}).stdout.splitlines()

    assert ["heartbeat_interval", "90s", "LOCALAI_HEARTBEAT_INTERVAL"] in [row.split() for row in rows]
    assert ["lan", "true", "REMUDA_LAN"] in [row.split() for row in rows]


def test_secrets_are_shown_as_set_or_not_set(environ: dict[str, str]) -> None:
    result = check({**environ, "REMUDA_REGISTRATION_TOKEN": "s3cret"})

    rows = [row.split() for row in result.stdout.splitlines()]
    assert "s3cret" not in result.output
    assert ["registration_token", "set", "REMUDA_REGISTRATION_TOKEN"] in rows
    assert ["database_url", "not", "set", "default"] in rows


def test_a_setting_that_nothing_uses_yet_says_so(environ: dict[str, str]) -> None:
    row = next(row for row in check(environ).stdout.splitlines() if row.startswith("galleries "))

    assert "no effect yet: for workers that install models" in row


def test_a_variable_that_nothing_reads_is_warned_of_with_the_nearest(environ: dict[str, str]) -> None:
    result = check({**environ, "REMUDA_HEARTBEAT_INTERVALL": "1s"})

    assert result.exit_code == Exit.DONE
    assert "warning: REMUDA_HEARTBEAT_INTERVALL is not a setting; did you mean" in result.stderr


def test_what_cannot_be_used_is_refused_by_name(environ: dict[str, str]) -> None:
    result = check({**environ, "REMUDA_HEARTBEAT_INTERVAL": "soon"}, "--role", "worker")

    assert result.exit_code == Exit.MISUSED
    assert result.stderr.startswith("error: REMUDA_HEARTBEAT_INTERVAL='soon' cannot be used; accepted: a dur")


def test_a_refusal_is_json_where_json_was_asked_for(environ: dict[str, str]) -> None:
    result = check({**environ, "REMUDA_PORT": "70000"}, "--json")

    assert result.exit_code == Exit.MISUSED
    assert json.loads(result.stderr)["error"]["code"] == "misconfigured"
