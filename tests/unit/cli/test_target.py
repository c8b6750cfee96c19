"""Which frontend a command talks to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from remuda.cli.invocation import ClientOptions
from remuda.cli.target import NotRunningHere, Target, alive, checked_url, find_target
from remuda.core.errors import Misconfigured
from remuda.host.folder import DataFolder, write_json


def announce(folder: Path, pid: int, **more: object) -> dict[str, str]:
    """What a running frontend leaves in its data folder; answers the environment that names it."""
    endpoint = {"url": "http://127.0.0.1:8080", "api_key": "local", "pid": pid, **more}
    write_json(DataFolder(folder).endpoint, endpoint)
    return {"REMUDA_DATA_DIR": str(folder)}


def ended_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(timeout=10)
    return child.pid


def test_the_frontend_of_the_data_folder_is_found(tmp_path: Path) -> None:
    environ = announce(tmp_path, os.getpid())

    source = str(DataFolder(tmp_path).endpoint)
    assert find_target(ClientOptions(), environ) == Target(
        "http://127.0.0.1:8080", SecretStr("local"), None, source, source
    )


def test_its_ca_comes_with_it(tmp_path: Path) -> None:
    environ = announce(tmp_path, os.getpid(), ca="/etc/ca.pem")

    assert find_target(ClientOptions(), environ).ca == Path("/etc/ca.pem")


def test_the_environment_wins_over_the_data_folder_and_a_flag_over_both(tmp_path: Path) -> None:
    environ = {**announce(tmp_path, os.getpid()), "REMUDA_URL": "http://two:1/"}

    assert find_target(ClientOptions(), environ).shown == "http://two:1 (from REMUDA_URL)"
    assert find_target(ClientOptions(url="http://three:1"), environ).shown == "http://three:1 (from --url)"


def test_the_local_key_is_never_shown_to_another_frontend(tmp_path: Path) -> None:
    environ = announce(tmp_path, os.getpid())

    assert find_target(ClientOptions(url="http://elsewhere:1"), environ).api_key is None


def test_a_key_that_is_given_wins_over_the_local_one(tmp_path: Path) -> None:
    environ = {**announce(tmp_path, os.getpid()), "REMUDA_API_KEY": "mine"}

    assert find_target(ClientOptions(), environ).api_key == SecretStr("mine")
    assert find_target(ClientOptions(api_key="flag"), environ).api_key == SecretStr("flag")


def test_where_a_key_came_from_is_known(tmp_path: Path) -> None:
    environ = {"REMUDA_URL": "http://two:1", "REMUDA_API_KEY": "mine"}

    assert find_target(ClientOptions(), environ).key_source == "--api-key or REMUDA_API_KEY"
    assert find_target(ClientOptions(api_key="flag"), environ).key_source == "--api-key"
    assert find_target(ClientOptions(), {"REMUDA_URL": "http://two:1"}).key_source == ""


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/api", "/api/"])
def test_the_address_of_an_api_stands_for_its_frontend(path: str) -> None:
    assert checked_url(f"http://barn:8080{path}", "URL") == "http://barn:8080"
    assert checked_url(f"https://barn/remuda{path}", "URL") == "https://barn/remuda"


def test_without_a_frontend_it_says_that_none_runs_here(tmp_path: Path) -> None:
    with pytest.raises(NotRunningHere, match="remuda up is not running here") as refusal:
        find_target(ClientOptions(), {"REMUDA_DATA_DIR": str(tmp_path)})

    assert "remuda up" in refusal.value.hint


def test_a_joined_machine_names_its_frontend_and_not_a_second_fleet(tmp_path: Path) -> None:
    write_json(DataFolder(tmp_path).joined, {"register_to": "http://barn:8080"})
    with pytest.raises(NotRunningHere, match="a worker of http://barn:8080") as refusal:
        find_target(ClientOptions(), {"REMUDA_DATA_DIR": str(tmp_path)})

    assert "remuda up" not in str(refusal.value)
    assert "REMUDA_URL=http://barn:8080" in refusal.value.hint
    assert "REMUDA_API_KEY" in refusal.value.hint


def test_what_a_dead_frontend_left_behind_does_not_count(tmp_path: Path) -> None:
    environ = announce(tmp_path, ended_process())

    with pytest.raises(NotRunningHere, match="has ended"):
        find_target(ClientOptions(), environ)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel does not tell")
def test_a_process_that_ended_and_was_not_collected_is_not_alive() -> None:
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not alive(child.pid)
    assert alive(os.getpid())


@pytest.mark.parametrize(
    "text", ["host:eight", "ftp://host", "http://", "http://h:99999", "http://a b", "http://[::1"]
)
def test_what_is_no_url_is_refused_with_the_accepted_form(text: str) -> None:
    with pytest.raises(Misconfigured, match=r"REMUDA_URL=.* is not a URL; expected http\(s\)://HOST"):
        checked_url(text, "REMUDA_URL")


def test_a_url_without_its_scheme_is_refused_with_what_may_be_meant() -> None:
    with pytest.raises(Misconfigured) as refused:
        checked_url("10.77.0.11:8080", "REMUDA_URL")
    assert refused.value.message == (
        "REMUDA_URL: 10.77.0.11:8080 has no http://; did you mean http://10.77.0.11:8080?"
    )


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(Misconfigured, match="API key") as refusal:
        find_target(ClientOptions(url="http://host", api_key=key), {})

    assert key not in str(refusal.value)


def test_the_text_of_what_was_asked_does_not_tell_the_key() -> None:
    assert "hunter2" not in repr(ClientOptions(api_key="hunter2"))
