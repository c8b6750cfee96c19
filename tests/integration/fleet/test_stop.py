"""`remuda up` ends as it was told to, in order, and leaves nothing behind."""

import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing

import pytest

from tests.support.processes import Frontend, Ranch
from tests.support.waiting import wait_until_blocking


def history(up: Frontend) -> list[str]:
    """What happened to its nodes, read from its database now that nobody answers."""
    with closing(sqlite3.connect(up.data_dir / "remuda.db")) as database:
        return [event for (event,) in database.execute("SELECT event FROM history ORDER BY id")]


# A wrapper such as timeout(1) passes on a signal that its whole group was sent: then it comes twice.
@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_worker_says_goodbye_to_a_frontend_that_still_answers(
    place: Ranch, signals: Sequence[signal.Signals]
) -> None:
    up = place.up()
    for number in signals:
        up.send(number)
        wait_until_blocking(lambda: up.events("stopping"))
    assert up.wait() == 0
    assert history(up) == ["registered", "leaving", "departed"]
    assert place.processes() == []
    assert not (up.data_dir / "run/endpoint.json").exists()


def test_second_signal_ends_it_at_once_without_leftovers(place: Ranch) -> None:
    up = place.up()
    up.child("worker").suspend()  # So that the orderly stop cannot come to its end.

    def ended() -> bool:
        up.send(signal.SIGINT)
        return not up.running

    wait_until_blocking(ended, within=10)
    assert up.wait() == 130
    wait_until_blocking(lambda: place.processes() == [])


def test_own_node_that_was_removed_stays_away_until_the_next_start(place: Ranch) -> None:
    up = place.up()
    removed = up.nodes()["up"]["id"]
    up.ask("DELETE", f"/api/nodes/{removed}").raise_for_status()
    wait_until_blocking(lambda: up.events("child_ended"))
    assert up.nodes() == {}
    assert up.stop() == 0
    again = place.up()
    assert again.nodes()["up"]["status"] == "healthy"
    assert again.nodes()["up"]["id"] != removed


def test_signal_while_it_starts_stops_it_in_order(place: Ranch) -> None:
    up = place.begin_up()
    wait_until_blocking(lambda: up.events("nats_server_ready"), within=30)
    up.send(signal.SIGTERM)
    assert up.wait() == 0
    assert place.processes() == []
    assert "Traceback" not in up.log
