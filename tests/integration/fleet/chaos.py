"""A small fleet, the ways to kill parts of it without warning, and what must hold afterwards."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

import httpx

from remuda.core.entropy import SeededEntropy
from remuda.host.folder import write_json
from remuda.host.ports import free_port
from tests.support.processes import START_S, Frontend, Json, Ranch, Worker
from tests.support.waiting import wait_until_blocking

NODES: Final = ("up", "joined")
JUST_STARTED: Final = (
    ["its worker is connecting to the bus"],
    ["remuda up was just started; its worker has not registered yet"],
)
_CONVERGED_S: Final = 60.0
_PAUSE_S_MAX: Final = 0.5


class Herd:
    """`remuda up`, and a worker that joined it. An admin has put a label on each node."""

    def __init__(self, place: Ranch, *settings: str) -> None:
        self._place = place
        self._settings = ("--port", str(free_port("127.0.0.1")), *settings)
        # As if remembered from an earlier life: out of the range in which other fleets here look for a port.
        write_json(place.folder / "up/nats/server.json", {"port": free_port("127.0.0.1")})
        self.frontends: list[Frontend] = []  # All lives of it.
        self._start_up()
        self.joined: Worker = place.join(self.up.url, "joined")
        self.known = {name: lasting(self.up.wait_for(name)) for name in NODES}
        for node in self.known.values():
            self.up.ask("PATCH", f"/api/nodes/{node['id']}/labels", {"brand": node["name"]})
            node["brand"] = node["name"]
        self.strikes: Mapping[str, Callable[[], None]] = {
            "the worker of up": lambda: self.up.child("worker").kill(),
            "the bus": lambda: self.up.child("nats-server").kill(),
            "up with all its children": self.restart_up,
            "the worker that joined": self.restart_joined,
        }

    @property
    def up(self) -> Frontend:
        return self.frontends[-1]

    def restart_up(self) -> None:
        self.up.kill()
        self._start_up()

    def restart_joined(self) -> None:
        self.joined.kill()
        self.joined = self._place.worker("joined")

    def settle(self) -> None:
        """Wait until every node is heard anew and healthy. Who they are must not have changed."""
        before = self._heartbeats()
        wait_until_blocking(
            lambda: self._all_heard_since(before), within=_CONVERGED_S, what="a fleet that converges"
        )
        nodes = self.up.nodes()
        assert {name: lasting(node) for name, node in nodes.items()} == self.known
        assert {node["status"] for node in nodes.values()} == {"healthy"}

    def troubles(self) -> list[Json]:
        """Every moment at which a frontend thought ill of a node. That an admin drains one is none, nor that
        a worker that was started again has yet to register or to connect."""
        changes = [change for up in self.frontends for change in up.events("node_status_changed")]
        return [
            change
            for change in changes
            if change["now"] not in ("healthy", "draining") and change["why"] not in JUST_STARTED
        ]

    def _start_up(self) -> None:
        up = self._place.begin_up("up", *self._settings)
        up.wait_until_it_answers()
        self.frontends.append(up)

    def _heartbeats(self) -> Mapping[str, str]:
        nodes = wait_until_blocking(self.up.nodes, within=START_S)
        return {name: node["last_heartbeat"] for name, node in nodes.items()}

    def _all_heard_since(self, before: Mapping[str, str]) -> bool:
        with suppress(httpx.TransportError, httpx.HTTPStatusError):
            nodes = self.up.nodes()
            return all(
                nodes[name]["status"] == "healthy" and nodes[name]["last_heartbeat"] > heard
                for name, heard in before.items()
            )
        return False


def lasting(node: Json) -> Json:
    """What no crash may change."""
    facts = {"id": node["id"], "name": node["name"], "approved": node["remuda"]["approved"]}
    return facts | {key: node["labels"][key] for key in ("brand",) if key in node["labels"]}


def rampage(herd: Herd, seed: int) -> Iterator[str]:
    """Strike for ever, in an order and at moments that the seed decides; says what is struck, before it is.

    Each part has its turn before any has its second. Now and then the next strike does not wait until the
    fleet has recovered from this one.
    """
    chance = SeededEntropy(seed)
    while True:
        order = sorted(herd.strikes, key=lambda _: chance.fraction())
        for victim in order:
            yield victim
            _let_pass(chance.fraction() * _PAUSE_S_MAX)
            herd.strikes[victim]()
            if chance.fraction() < 2 / 3:
                herd.settle()


def _let_pass(span_s: float) -> None:
    """The moment of a strike is part of the experiment."""
    until = time.monotonic() + span_s
    wait_until_blocking(lambda: time.monotonic() >= until)
