"""Our gateway as its users run it: `remuda frontend` with SQLite, the bundled nats-server, a key, metrics and
a log line for each request. Its one replica is a mock, which a worker brought and a request loaded."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Final

import psutil
from tests.support.processes import START_S, TOKEN, Frontend, Ranch, ranch
from tests.support.waiting import wait_until_blocking

from bench.gateway_load import HOST, OPENAI, Api, Place
from bench.gateway_targets import GATEWAY_CORE, Running, Target, pin
from bench.gateway_worker import BACKEND
from bench.mock_upstreams import MODEL

_MUCH: Final = 10**12
_LIMITS: Final = {
    "requests_per_minute": _MUCH,
    "tokens_per_minute": _MUCH,
    "concurrent_requests": _MUCH,
    "tokens_per_day": _MUCH,
    "tokens_per_month": _MUCH,
}


class Keys(Enum):
    """What a frontend asks of those who come to it."""

    NOT_ASKED_FOR = auto()  # It serves loopback alone.
    ASKED_FOR = auto()
    LIMITED = auto()  # The key has every limit, and reaches none.


def frontend(
    protocol: str, *, keys: Keys = Keys.NOT_ASKED_FOR, api: Api = OPENAI, source: str = ""
) -> Target:
    """With a replica that speaks `http` or `grpc`. `api`: in which it is asked. A key is always sent.
    `source`: the folder of another version's packages."""

    @contextmanager
    def target(upstream_port: int) -> Iterator[Running]:
        with tempfile.TemporaryDirectory(prefix="remuda-bench-") as folder, ranch(Path(folder)) as place:
            where = () if keys is Keys.NOT_ASKED_FOR else ("--host", "0.0.0.0")
            environ = {"PYTHONPATH": source} if source else {}
            started = place.frontend("frontend", "--auto-approve", *where, **environ)
            process, bus = psutil.Process(started.pid), started.child("nats-server")
            pin(process, GATEWAY_CORE)  # But not its nats-server, which stays with the others.
            _join(place, started, f"{HOST}:{upstream_port}", protocol)
            _load(started)
            yield Running(Place(_port(started), _key(started, keys), api), process, bus)

    return target


def _port(started: Frontend) -> int:
    return int(started.url.rpartition(":")[2])


def _join(place: Ranch, started: Frontend, replica: str, protocol: str) -> None:
    bus_url = f"nats://{HOST}:{started.bus_port}"
    worker = place.program(
        "bench.gateway_worker", started.url, bus_url, replica, protocol, REMUDA_REGISTRATION_TOKEN=TOKEN
    )
    wait_until_blocking(lambda: "ready" in worker.shown, within=START_S, what="the worker to be ready")


def _load(started: Frontend) -> None:
    config = {"name": MODEL, "backend": BACKEND, "parameters": {"model": MODEL}}
    started.ask("POST", "/api/models", {"config": json.dumps(config)}).raise_for_status()
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Are you there?"}]}
    answer = started.ask("POST", "/v1/chat/completions", asked)
    assert answer.status_code == 200, f"the mock replica was not loaded: {answer.text}\n{started.log}"


def _key(started: Frontend, keys: Keys) -> str:
    wanted = {"name": "bench", **(_LIMITS if keys is Keys.LIMITED else {})}
    made = started.ask("POST", "/api/keys", wanted).raise_for_status()
    return str(made.json()["key"])
