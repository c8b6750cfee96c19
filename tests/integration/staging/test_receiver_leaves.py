"""The worker that receives a model's files, or starts its backend, goes: it is drained, removed, or killed.
Those who wait for the model are answered by another, or learn why none can take it."""

import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from tests.integration.staging.fleet import Fleet, fleet
from tests.support.trickle import relay
from tests.support.waiting import wait_until_blocking

SIZE = 4 << 20
SLOW = 200_000.0
ANSWERED_S = 100.0
WORKERS = ("one", "two")
OFFLINE = {"REMUDA_NODE_UNHEALTHY_AFTER": "10s", "REMUDA_NODE_OFFLINE_AFTER": "20s"}


@contextmanager
def throttled(folder: Path, workers: tuple[str, ...], **environ: str) -> Iterator[Fleet]:
    """What workers fetch from the frontend comes slowly."""
    with (
        fleet(folder, (), **environ) as place,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(relay(place.port)) as link,
    ):
        for name in workers:
            place.start_worker(name, f"http://127.0.0.1:{link.port}")
        place.wait_for_workers()
        link.bytes_per_s = SLOW
        yield place


@contextmanager
def asking(place: Fleet, model: str) -> Iterator[Future[httpx.Response]]:
    with ThreadPoolExecutor(1) as callers:
        yield callers.submit(place.ask_chat, model)


def receiver(place: Fleet) -> str:
    wait_until_blocking(
        lambda: any(place.partial_bytes(name) for name in place.workers), within=60, what="bytes to come"
    )
    return next(name for name in place.workers if place.partial_bytes(name))


def node_id(place: Fleet, name: str) -> str:
    return str(place.frontend.nodes()[name]["id"])


@pytest.mark.parametrize("leaving", ["drained", "removed", pytest.param("killed", marks=pytest.mark.long)])
def test_another_node_takes_the_model_when_the_receiver_goes(tmp_path: Path, leaving: str) -> None:
    with throttled(tmp_path, WORKERS, **OFFLINE) as place:
        content = place.put("wanted.bin", SIZE)
        place.add("wanted", "wanted.bin")
        with asking(place, "wanted") as answer:
            first = receiver(place)
            (second,) = set(WORKERS) - {first}
            match leaving:
                case "drained":
                    place.frontend.ask("POST", f"/api/nodes/{node_id(place, first)}/drain").raise_for_status()
                case "removed":
                    place.frontend.ask("DELETE", f"/api/nodes/{node_id(place, first)}").raise_for_status()
                case _:
                    place.workers[first].kill()

            got = answer.result(timeout=ANSWERED_S)

        assert got.status_code == 200, got.text
        assert place.file(second, "wanted.bin").read_bytes() == content
        assert [one["node"] for one in place.loaded("wanted")] == [second]


def test_those_who_wait_learn_why_no_other_node_can_take_it(tmp_path: Path) -> None:
    with throttled(tmp_path, ("one",)) as place:
        place.put("wanted.bin", SIZE)
        place.add("wanted", "wanted.bin")
        with asking(place, "wanted") as answer:
            place.frontend.ask("POST", f"/api/nodes/{node_id(place, receiver(place))}/drain")

            got = answer.result(timeout=ANSWERED_S)

        assert got.status_code == 503
        assert "no node can take wanted: one: drained by an admin" in got.text


@pytest.mark.parametrize("moment", ["copied", "starting"])
def test_load_ends_well_when_its_worker_is_killed_after_copying(tmp_path: Path, moment: str) -> None:
    """Between the end of copying and the start of the backend, and while the backend loads its model."""
    with fleet(tmp_path, ("one",)) as place:
        place.put("wanted.bin", SIZE)
        place.add("wanted", "wanted.bin", options=["echo_load_delay_ms:3000"])
        with asking(place, "wanted") as answer:
            if moment == "copied":
                wait_until_blocking(
                    lambda: place.file("one", "wanted.bin").exists(), within=60, what="the file to be there"
                )
            else:
                wait_until_blocking(
                    lambda: [one["state"] for one in place.replicas("wanted")] == ["loading"],
                    within=60,
                    what="the backend to load its model",
                )
            place.workers["one"].send(signal.SIGKILL)
            place.workers["one"].wait()
            place.start_worker("one")

            got = answer.result(timeout=ANSWERED_S)

        assert got.status_code in (200, 503), got.text
        place.wait_for_workers()
        wait_until_blocking(
            lambda: place.ask_chat("wanted").status_code == 200,
            within=40,
            what="a request to find it, or to load it when the failure has answered for itself long enough",
        )
        assert [one["state"] for one in place.replicas("wanted")] == ["loaded"]
