"""`remuda up`: what is there once it says that it is up."""

import json
import stat
from pathlib import Path

from tests.support.processes import START_S, Frontend, Ranch
from tests.support.terminals import until


def test_own_node_is_healthy(up: Frontend) -> None:
    node = up.nodes()["up"]
    assert node["status"] == "healthy"
    assert node["remuda"]["approved"]


def test_banner_tells_where_things_are_and_how_to_let_others_in(up: Frontend) -> None:
    assert f"API         {up.url}\n" in up.shown
    assert f"Data        {up.data_dir}\n" in up.shown
    assert "This node   up: healthy" in up.shown
    again = "To let other machines in: remuda up --name up --heartbeat-interval 500ms --port 0 --lan\n"
    assert again in up.shown, "with the flags that it was given"


def test_what_it_keeps_is_for_its_owner_only(up: Frontend) -> None:
    def mode(name: str) -> int:
        return stat.S_IMODE((up.data_dir / name).stat().st_mode)

    assert mode("") == 0o700
    assert mode("run/endpoint.json") == mode("remuda.db") == mode("nats/server.json") == 0o600


def test_commands_on_this_machine_find_it(up: Frontend, common: Ranch) -> None:
    done = common.invoke("nodes", "--json")
    assert done.exit_code == 0, done.stderr
    assert "up" in {node["name"] for node in json.loads(done.stdout)["nodes"]}


def test_same_folder_twice_is_refused_naming_the_process(up: Frontend, common: Ranch) -> None:
    done = common.invoke("up", "--port", "0")
    assert done.exit_code == 2
    assert f"process {up.pid}" in done.stderr
    assert "--data-dir" in done.stderr


def test_port_in_use_is_refused_before_anything_starts(up: Frontend, common: Ranch) -> None:
    port = up.url.rpartition(":")[2]
    done = common.invoke("up", "--port", port, data="late")
    assert done.exit_code == 2
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr
    assert "--port" in done.stderr
    assert not (common.folder / "late/nats").exists()
    assert not (common.folder / "late/remuda.db").exists()


def test_two_started_at_one_moment_run_side_by_side(place: Ranch) -> None:
    pair = [place.begin_up(name) for name in ("first", "second")]
    for one in pair:
        one.wait_until_it_answers()
    for one in pair:
        one.wait_for(one.data_dir.name, within=START_S)
        assert list(one.nodes()) == [one.data_dir.name]
    assert pair[0].bus_port != pair[1].bus_port


def test_a_person_at_a_terminal_sees_lines_and_no_json(tmp_path: Path) -> None:
    """Of its own worker too, which writes to a pipe."""
    warned = {"REMUDA_PREFETCH_MODELS": "a-model", "REMUDA_PORT": "0"}

    seen = until(tmp_path, ["up"], "is up.", **warned)

    assert seen.count("A setting has no effect yet") == 2
    assert [line for line in seen.splitlines() if line.lstrip().startswith("{")] == []
