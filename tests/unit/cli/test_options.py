"""Where settings come from, and that what cannot be read is refused by name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import combinations
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from remuda.assembly.settings import CommonSettings, UpSettings, WorkerSettings
from remuda.assembly.settings.shared import registration_token
from remuda.cli.commands import settings_command
from remuda.cli.invocation import ROLES, ProgramRole
from remuda.cli.options import config_file, data_folder, metavar, model_of, resolve_settings
from remuda.core import durations
from remuda.core.errors import Misconfigured
from remuda.core.settings import Described, described
from remuda.host.folder import DataFolder, write_json

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("flag", "REMUDA", "LOCALAI", "saved", "file", "default")


@dataclass
class Given:
    """A worker's surroundings, filled source by source."""

    folder: Path
    flags: dict[str, object] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)

    def add(self, source: str, value: str) -> None:
        match source:
            case "flag":
                self.flags["heartbeat_interval"] = value
            case "REMUDA":
                self.environ["REMUDA_HEARTBEAT_INTERVAL"] = value
            case "LOCALAI":
                self.environ["LOCALAI_HEARTBEAT_INTERVAL"] = value
            case "saved":
                write_json(DataFolder(self.folder).joined, {"heartbeat_interval": value})
            case "file":
                self.write(f'heartbeat-interval = "{value}"')

    def write(self, text: str) -> None:
        path = self.folder / "config.toml"
        path.write_text(text)
        self.environ["REMUDA_CONFIG"] = str(path)

    def resolve(self) -> WorkerSettings:
        return resolve_settings(WorkerSettings, self.flags, self.environ).values


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Given(tmp_path, environ={"REMUDA_DATA_DIR": str(tmp_path)})


@pytest.mark.parametrize(("stronger", "weaker"), list(combinations(SOURCES, 2)))
def test_each_source_wins_over_the_next(given: Given, stronger: str, weaker: str) -> None:
    given.add(weaker, "7s")
    given.add(stronger, "3s")

    assert given.resolve().heartbeat_interval == timedelta(seconds=3)


def test_the_origin_of_a_value_is_told(given: Given) -> None:
    given.add("file", "7s")
    given.environ["LOCALAI_NODE_NAME"] = "attic"

    origins = resolve_settings(WorkerSettings, {"addr": "h:1"}, given.environ).origins

    assert origins["heartbeat_interval"] == f"heartbeat_interval in {given.folder / 'config.toml'}"
    assert (origins["node_name"], origins["addr"], origins["ca"]) == (
        "LOCALAI_NODE_NAME",
        "--addr",
        "default",
    )


# Refusals

UNREADABLE = {
    durations.ACCEPTED: "10 fortnights",
    "a port from 0 to 65535": "70000",
    "true or false": "perhaps",
    "a JSON list": "{",
    "a number from 1 to 1000": "0",
    "debug, info, warning or error": "loud",
    "auto, console or json": "xml",
    "a number": "few",
}
CHECKED = [item for item in described(UpSettings) if item.setting.accepted in UNREADABLE]


@pytest.mark.parametrize("item", CHECKED, ids=lambda item: item.field)
def test_a_value_that_cannot_be_read_is_refused_by_variable_and_accepted_form(
    given: Given, item: Described
) -> None:
    given.environ[item.env] = UNREADABLE[item.setting.accepted]

    with pytest.raises(Misconfigured) as refusal:
        resolve_settings(UpSettings, {}, given.environ)

    assert item.env in refusal.value.message
    assert item.setting.accepted in refusal.value.message


def test_an_unknown_key_in_the_file_is_refused_with_the_nearest(given: Given) -> None:
    given.write("heartbeat_intervall = '1s'")

    with pytest.raises(Misconfigured, match="heartbeat_intervall") as refusal:
        given.resolve()

    assert "heartbeat_interval" in refusal.value.hint


def test_a_file_may_hold_settings_of_other_roles(given: Given) -> None:
    given.write("port = 9000")

    assert given.resolve().node_name == ""


def test_a_file_that_was_named_must_exist(given: Given) -> None:
    given.flags["config"] = str(given.folder / "missing.toml")

    with pytest.raises(Misconfigured, match=r"missing\.toml cannot be read"):
        given.resolve()


def test_the_users_config_folder_is_looked_at_when_no_file_is_named(given: Given) -> None:
    path, required = config_file({}, {})

    assert (path, required) == (given.folder / "config/remuda/config.toml", False)


def test_the_data_folder_is_found_whatever_other_settings_say(given: Given) -> None:
    given.environ["REMUDA_PORT"] = "none"

    assert data_folder({}, given.environ).root == given.folder


# What `remuda join` saved


def save_joined(given: Given) -> None:
    saved = {"register_to": "http://one:8080", "registration_token": "saved"}
    write_json(DataFolder(given.folder).joined, saved)


@pytest.mark.parametrize("url", ["http://one:8080", "http://one:8080/", None])
def test_saved_values_count_for_the_frontend_that_was_joined(given: Given, url: str | None) -> None:
    save_joined(given)
    given.flags["register_to"] = url

    assert given.resolve().registration_token == SecretStr("saved")


def test_saved_values_do_not_count_for_another_frontend(given: Given) -> None:
    save_joined(given)
    given.flags["register_to"] = "http://two:8080"

    assert given.resolve().registration_token is None


def test_saved_values_do_not_count_for_up(given: Given) -> None:
    save_joined(given)

    assert resolve_settings(UpSettings, {}, given.environ).values.register_to == ""


# The registration token


def test_the_token_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")

    settings = CommonSettings(registration_token_file=tmp_path / "token")

    assert registration_token(settings) == SecretStr("s3cret")


def test_a_token_wins_over_its_file(tmp_path: Path) -> None:
    settings = CommonSettings(
        registration_token=SecretStr("near"), registration_token_file=tmp_path / "missing"
    )

    assert registration_token(settings) == SecretStr("near")


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), (b"\xff", "not text"), (b" \n", "empty")]
)
def test_a_token_file_without_a_token_is_refused(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(Misconfigured, match=reason):
        registration_token(CommonSettings(registration_token_file=path))


def test_a_token_file_that_is_named_now_wins_over_a_saved_token(given: Given) -> None:
    save_joined(given)
    (given.folder / "token").write_text("fresh")
    given.flags["registration_token_file"] = str(given.folder / "token")

    assert registration_token(given.resolve()) == SecretStr("fresh")


# On the command line


def run(
    role: ProgramRole, arguments: list[str], environ: Mapping[str, str], stdin: str = ""
) -> Mapping[str, object]:
    """The settings that a command of that role is started with, as JSON shows them; secrets in clear."""

    @click.command(cls=settings_command(role))
    def command(**flags: object) -> None:
        found = resolve_settings(model_of(role), flags).values
        secrets = {name: value.get_secret_value() for name, value in found if isinstance(value, SecretStr)}
        click.echo(json.dumps({**found.model_dump(mode="json"), **secrets}))

    result = CliRunner().invoke(command, arguments, env=environ, input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    values: Mapping[str, object] = json.loads(result.stdout)
    return values


def test_flags_are_read_as_the_settings_they_name(given: Given) -> None:
    values = run("worker", ["--name", "attic", "--labels", "a=b", "--no-insecure-no-token"], given.environ)

    assert (values["node_name"], values["node_labels"]) == ("attic", {"a": "b"})
    assert values["insecure_no_token"] is False


def test_a_flag_can_say_no_to_the_environment(given: Given) -> None:
    environ = {**given.environ, "REMUDA_LAN": "true"}

    assert run("up", [], environ)["lan"] is True
    assert run("up", ["--no-lan"], environ)["lan"] is False


def test_a_dash_reads_the_token_from_standard_input(given: Given) -> None:
    assert run("worker", ["--token", "-"], given.environ, "s3cret\n")["registration_token"] == "s3cret"


def test_hidden_settings_are_flags_that_help_does_not_list(given: Given) -> None:
    shown = CliRunner().invoke(click.command(cls=settings_command("up"))(lambda **_: None), ["--help"]).output

    assert "--nats-account-seed" not in shown
    assert run("worker", ["--nats-password", "pw"], given.environ)["nats_password"] == "pw"


@pytest.mark.parametrize("role", ROLES)
def test_every_setting_that_is_not_hidden_is_in_the_help_with_its_variable(role: ProgramRole) -> None:
    shown = CliRunner().invoke(click.command(cls=settings_command(role))(lambda **_: None), ["--help"]).output
    visible = [item for item in described(model_of(role)) if not item.setting.hidden]

    assert [item.flag for item in visible if item.flag not in shown] == []
    assert [item.env for item in visible if item.env not in shown] == []


def test_settings_that_the_guides_name_are_in_the_help() -> None:
    guides = "".join(page.read_text() for page in (ROOT / "docs" / "guide").glob("*.md"))
    named = [item for role in ROLES for item in described(model_of(role)) if f"`{item.flag}`" in guides]

    assert {"--distributed-shared-models", "--backend-install-timeout"} <= {item.flag for item in named}
    assert [item.flag for item in named if item.setting.hidden] == []


def test_numbers_are_asked_for_as_numbers() -> None:
    [item] = [item for item in described(model_of("up")) if item.field == "nodes_at_once"]

    assert metavar(item) == "N"


@pytest.mark.parametrize(("text", "wrong"), [("room,x=1", "'room' has no value"), ("=x", "'=x' has no key")])
def test_labels_that_are_typed_and_are_not_pairs_are_refused(tmp_path: Path, text: str, wrong: str) -> None:
    with pytest.raises(Misconfigured) as refusal:
        resolve_settings(WorkerSettings, {"node_labels": text}, {"HOME": str(tmp_path)})

    assert refusal.value.message == (f"--labels={text!r} cannot be used: labels are KEY=VALUE pairs; {wrong}")
