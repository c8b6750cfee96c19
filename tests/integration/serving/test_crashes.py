"""A backend's process is killed on a plain `up`: nobody goes on believing in it, and the model is back."""

import psutil

from tests.integration.serving.asking import add_echo, chat, process_at, replicas, said
from tests.support.processes import Frontend, Json
from tests.support.waiting import wait_until_blocking


def address_of(up: Frontend, model: str) -> str:
    """Where it is loaded; empty: nowhere."""
    rows = [one for one in replicas(up) if (one["model"], one["state"]) == (model, "loaded")]
    return rows[0]["address"] if rows else ""


def _listening(process: psutil.Process) -> set[int]:
    return {one.laddr.port for one in process.net_connections() if one.status == psutil.CONN_LISTEN}


def kill_backend(up: Frontend, model: str) -> str:
    """The address at which it was."""
    add_echo(up, model)
    assert said(chat(up, model)) == "one two three"
    address = address_of(up, model)
    process_at(up, address).kill()
    return address


def backends(up: Frontend) -> int:
    """Processes of the echo backend that listen."""
    return sum(
        bool(_listening(child))
        for child in psutil.Process(up.pid).children(recursive=True)
        if "remuda.backends.echo" in " ".join(child.cmdline())
    )


def lost(up: Frontend) -> list[Json]:
    """What the history of nodes has of replicas that went by themselves."""
    return [entry for entry in up.get("/api/history") if entry["event"] == "replica_lost"]


def test_killed_replica_is_loaded_again_where_its_worker_restarted_it(alone: Frontend) -> None:
    dead = kill_backend(alone, "mortal")

    def moved() -> bool:
        return address_of(alone, "mortal") not in ("", dead)

    wait_until_blocking(moved, within=30, what="the replica at another address, though nobody asked for it")
    assert said(chat(alone, "mortal")) == "one two three"
    assert len([one for one in replicas(alone) if one["model"] == "mortal"]) == 1
    [entry] = [entry for entry in lost(alone) if "mortal#0" in entry["detail"]]
    assert "ended: it was killed by SIGKILL" in entry["detail"]


def test_request_for_a_killed_replica_is_answered_by_the_next(alone: Frontend) -> None:
    kill_backend(alone, "mourned")
    assert said(chat(alone, "mourned")) == "one two three"


def test_killed_replica_that_is_unloaded_at_once_leaves_no_process(alone: Frontend) -> None:
    add_echo(alone, "first")
    assert said(chat(alone, "first")) == "one two three"
    before = backends(alone)
    kill_backend(alone, "unwanted")
    answer = alone.ask("POST", "/api/models/unwanted/unload", {})
    assert answer.status_code < 300, answer.text

    def only_others() -> bool:
        return not address_of(alone, "unwanted") and backends(alone) == before

    wait_until_blocking(only_others, within=60, what="the process that its worker restarted is gone")
