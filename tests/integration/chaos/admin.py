"""Somebody who keeps wishing while everything breaks: installs, upgrades, removals, and changes of mind."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import httpx

from remuda.core.entropy import SeededEntropy
from tests.integration.chaos.corral import BACKENDS, Corral
from tests.integration.chaos.wares import broken, light
from tests.support.plain_http import PLAIN
from tests.support.waiting import wait_until_blocking

T = TypeVar("T")
Say = Callable[[str], None]
_GAP_S: Final = (0.2, 1.5)
_ASK_S: Final = 4.0
_IMAGE_BYTES: Final = 300_000
_KINDS: Final = ("install", "install", "upgrade", "upgrade", "rolling", "remove", "cancel", "pause")


class Admin:
    """What he gets no answer to he says again, under the same key, to the other frontend."""

    def __init__(self, corral: Corral, seed: int, say: Say) -> None:
        self.answers: Counter[int] = Counter()  # By HTTP status; 0: none came.
        self.keys: list[str] = []
        self.defects: list[str] = []
        self._corral = corral
        self._chance = SeededEntropy(seed)
        self._whom = SeededEntropy(seed)  # Of its own: how many there are to ask must not change the wishes.
        self._say = say
        self._version = 0
        self._asked: list[str] = []
        self._paused: list[str] = []

    def begin(self) -> None:
        """Everything is offered, and wanted everywhere."""
        for backend in BACKENDS:
            self._offer(backend)
            self._begin("install", backend)

    def wish_for(self, span_s: float) -> None:
        until_s = time.monotonic() + span_s
        while time.monotonic() < until_s:
            _let_pass(self._between(_GAP_S))
            self._wish(self._one_of(_KINDS))

    def settle(self) -> None:
        """Nothing is left paused."""
        for op in self._paused:
            self._post(f"/api/ops/{op}/resume", {}, "resume")

    def _wish(self, kind: str) -> None:
        backend = self._one_of(BACKENDS)
        match kind:
            case "cancel" | "pause":
                self._change_mind(kind)
            case "upgrade" | "rolling":
                self._offer(backend)
                roll_out = {"policy": "rolling", "batch": 2} if kind == "rolling" else {"policy": "all"}
                self._begin("upgrade", backend, roll_out=roll_out)
            case _:
                self._begin(kind, backend, nodes=self._some_nodes())

    def _begin(self, kind: str, backend: str, **more: Any) -> None:
        key = f"wish-{len(self.keys)}"
        self.keys.append(key)
        body = {"kind": kind, "backend": backend, "idempotency_key": key, **more}
        for _ in range(2):
            answer = self._post("/api/ops", body, f"{kind} {backend} {more}")
            if answer is not None and answer.status_code == 202:
                self._asked.append(answer.json()["operation"]["id"])
            if answer is not None:
                return

    def _change_mind(self, kind: str) -> None:
        if not self._asked:
            return
        op = self._asked[-1]
        if kind == "pause":
            self._paused.append(op)
        self._post(f"/api/ops/{op}/{kind}", {}, kind)

    def _offer(self, backend: str) -> None:
        """Now and then it is a version that does not start. The registry may be away."""
        self._version += 1
        bad = self._version > len(BACKENDS) and self._chance.fraction() < 0.2
        built = broken(self._version) if bad else light(self._version, _IMAGE_BYTES)
        try:
            self._corral.wares.offer(backend, built)
        except OSError as error:
            self._say(f"no new {backend} was offered: {error}")

    def _post(self, path: str, body: object, what: str) -> httpx.Response | None:
        """None when no answer came, or one that says: later."""
        frontends = self._corral.answering()
        if not frontends:
            self._say(f"{what}: nobody is there")
            return None
        frontend = frontends[int(self._whom.fraction() * len(frontends))]
        headers = {"Authorization": f"Bearer {frontend.api_key}"}
        try:
            answer = httpx.post(
                f"{frontend.url}{path}",
                json=body,
                headers=headers,
                timeout=_ASK_S,
                trust_env=False,
                verify=PLAIN,
            )
        except httpx.HTTPError as error:
            self.answers[0] += 1
            self._say(f"{what}: no answer ({type(error).__name__})")
            return None
        self.answers[answer.status_code] += 1
        self._say(f"{what}: {answer.status_code} {_gist(answer)}")
        if answer.status_code == 500:
            self.defects.append(f"{what}: {answer.text}")
        return answer if answer.status_code < 500 else None

    def _some_nodes(self) -> list[str]:
        """None at all means all of them."""
        names = [machine.name for machine in self._corral.workers]
        chosen = [name for name in names if self._chance.fraction() < 0.5]
        return chosen if self._chance.fraction() < 0.5 else []

    def _one_of(self, many: Sequence[T]) -> T:
        return many[int(self._chance.fraction() * len(many))]

    def _between(self, bounds: tuple[float, float]) -> float:
        least, most = bounds
        return least + (most - least) * self._chance.fraction()


def _gist(answer: httpx.Response) -> str:
    told = answer.json() if answer.headers.get("content-type", "").startswith("application/json") else {}
    trouble = told.get("error", {}).get("message", "")
    return str(told.get("operation", {}).get("id") or trouble[:80] or told.get("status", ""))


def _let_pass(span_s: float) -> None:
    """The moment of a wish is part of the experiment."""
    until_s = time.monotonic() + span_s
    wait_until_blocking(lambda: time.monotonic() >= until_s, within=span_s + 60)
