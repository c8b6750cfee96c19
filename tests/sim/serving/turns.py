"""Who waits for a seat, and for how long: one key's many requests do not keep another's few from theirs."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remuda.scheduler.model import ReplicaState
from tests.sim.serving.world import ServingWorld

if TYPE_CHECKING:
    from tests.sim.serving.frontends import ServingFrontend

_SEATS = 2  # Of each replica.
_AT_ONCE = 4  # Those who were about to be seated when it came.


@dataclass(slots=True)
class _Waiting:
    host: str
    key: str
    model: str
    passed_by: Counter[str] = field(
        default_factory=Counter
    )  # How many of each other key were seated meanwhile.


class Turns:
    def __init__(self, world: ServingWorld) -> None:
        self._world = world
        self._waiting: dict[str, _Waiting] = {}

    def waiting(self, host: "ServingFrontend", request: str, key: str, model: str) -> None:
        self._waiting[request] = _Waiting(host.id, key, model)

    def waits_no_more(self, request: str) -> None:
        self._waiting.pop(request, None)

    def seated(self, request: str) -> None:
        """With a replica; whoever is sent to a second one was seated before."""
        seated = self._waiting.pop(request, None)
        if seated is None:
            return
        for name, one in self._waiting.items():
            if (one.host, one.model) == (seated.host, seated.model) and one.key != seated.key:
                one.passed_by[seated.key] += 1
                if one.passed_by[seated.key] > self._turn(one.model):
                    self._world.violated("keys_take_turns", name, one.model, one.key, one.passed_by)

    def _turn(self, model: str) -> int:
        rows = self._world.serving_claims.rows.values()
        loaded = sum(row.key.model == model and row.state is ReplicaState.LOADED for row in rows)
        return _AT_ONCE + 2 * _SEATS * loaded
