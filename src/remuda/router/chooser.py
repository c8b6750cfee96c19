"""Chooses among a model's replicas by its policy, and remembers what each has seen of prompts. Frontends tell
each other what is new to them; what they hear is not passed on.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.abc import TaskStatus

from remuda.core.broadcast import DebouncedBroadcast
from remuda.core.clock import Clock
from remuda.core.ids import FrontendId, ReplicaKey
from remuda.inference.model import InferenceCall
from remuda.models.config import ModelConfig
from remuda.ops.broadcast import FrontendSubject
from remuda.ops.ports import BusPort
from remuda.router.affinity import BALANCE, GUARDED, Balance, choose_by_prefix, choose_by_session
from remuda.router.live_table import Tables
from remuda.router.prefixes import LIVES_S, WINDOWS_MAX, Chain, PrefixTree, chain, prompt_text
from remuda.router.table import Route
from remuda.wire import subjects
from remuda.wire.broadcasts import FrontendMessage
from remuda.wire.codec import Count, Many, Message, Uint64

_GAP_S: Final = 0.1
_UNTOLD_MAX: Final = 2_000  # Chains; more than that in a gap are not published.
_CHAINS_MAX: Final = 400  # In one message.
_SWEEP_S: Final = 30.0


class SeenPrompt(Message):
    model: str
    index: Count = 0
    change: Count = 0  # Of the replica's row: after another load it has seen nothing.
    chain: Many[Uint64] = ()


class PromptsSeen(FrontendMessage):
    """Frontend to frontends, ours: what replicas have in their caches now."""

    frontend: str
    seen: Many[SeenPrompt] = ()


class PrefixFigures:
    """What came of it, by model, for metrics."""

    def __init__(self) -> None:
        self.windows = defaultdict[str, int](int)  # Of prompts that were routed by their beginnings.
        self.matched = defaultdict[str, int](int)  # Of those, the ones that the chosen replica had seen.
        self.guarded = defaultdict[str, int](int)  # Requests whose replica was too busy.


HOT_LEAST_S: Final = 30.0  # So long a replica is too busy for its prompts before one more is wanted.
_HOT_GAP_S: Final = 30.0  # What is not seen again within this time is over.


@dataclass(slots=True)
class _HotSpot:
    replicas: int
    since_s: float
    last_s: float


class HotSpots:
    """Models of which a replica is too busy for the prompts whose beginning it has, again and again. One more
    replica begins another count."""

    def __init__(self) -> None:
        self._seen: dict[str, _HotSpot] = {}

    def note(self, model: str, replicas: int, now_s: float) -> None:
        seen = self._seen.get(model)
        if seen is None or seen.replicas != replicas or now_s - seen.last_s > _HOT_GAP_S:
            self._seen[model] = _HotSpot(replicas, now_s, now_s)
        else:
            seen.last_s = now_s

    def lasting(self, now_s: float) -> Mapping[str, int]:
        """With how many replicas each has been too few for long."""
        self._seen = {name: one for name, one in self._seen.items() if now_s - one.last_s <= _HOT_GAP_S}
        hot = self._seen.items()
        return {name: one.replicas for name, one in hot if one.last_s - one.since_s >= HOT_LEAST_S}


class ReplicaChooser:
    """`run` it once; what is chosen costs no wait. `by_prefixes`: whether prompts are looked at; `lives_s`:
    how long a replica is taken to have one in its cache."""

    def __init__(
        self,
        tables: Tables,
        clock: Clock,
        bus: BusPort | None = None,
        frontend: str = "",
        *,
        by_prefixes: bool = True,
        lives_s: float = LIVES_S,
    ) -> None:
        self._by_prefixes = by_prefixes
        self._lives_s = lives_s
        self._tables = tables
        self._clock = clock
        self.figures = PrefixFigures()
        self._hot = HotSpots()
        self._trees = defaultdict[str, PrefixTree](lambda: PrefixTree(self._lives_s))
        self._untold: list[SeenPrompt] = []
        self._frontend = frontend
        self._subject = (
            None
            if bus is None
            else FrontendSubject(bus, subjects.PROMPTS_SEEN, FrontendId(frontend), PromptsSeen)
        )
        self._broadcast = DebouncedBroadcast(self._publish, gap_s=_GAP_S)

    def windows(self, call: InferenceCall) -> Chain:
        """Empty: the prompt decides nothing."""
        if not self._by_prefixes:
            return ()
        return chain(call.model.id, prompt_text(call.request))

    def by_prefix(
        self, config: ModelConfig, routes: Sequence[Route], load: Callable[[Route], int], windows: Chain
    ) -> tuple[Route, str] | None:
        tree, now_s = self._trees[config.id], self._clock.monotonic()
        ids = [route.id for route in routes]
        matches = tree.match(windows, ids, now_s)
        found = choose_by_prefix(
            routes,
            list(map(load, routes)),
            matches,
            len(windows),
            lambda place: tree.weight(ids[place], now_s),
            balance_of(config),
        )
        if found is None:
            return None
        if found[1] == GUARDED:
            self._hot.note(config.id, len(routes), now_s)
        return routes[found[0]], found[1]

    def hot_spots(self) -> Mapping[str, int]:
        """Models that need one more replica, and how many they have."""
        return self._hot.lasting(self._clock.monotonic())

    def by_session(
        self, config: ModelConfig, routes: Sequence[Route], load: Callable[[Route], int], session: str
    ) -> tuple[Route, str] | None:
        found = choose_by_session(routes, list(map(load, routes)), session, balance_of(config))
        return None if found is None else (routes[found[0]], found[1])

    def sent(self, route: Route, windows: Chain, why: str) -> None:
        """The prompt is on its way there, and will be in its cache."""
        model, now_s = route.key.model, self._clock.monotonic()
        tree, id = self._trees[model], route.id
        self.figures.windows[model] += len(windows)
        self.figures.matched[model] += tree.match(windows, (id,), now_s)[0]
        self.figures.guarded[model] += why == GUARDED
        if tree.observe(windows, id, now_s) and len(self._untold) < _UNTOLD_MAX:
            told = SeenPrompt(model=model, index=route.key.index, change=route.change, chain=tuple(windows))
            self._untold.append(told)
            self._broadcast.send()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            if self._subject is not None and self._by_prefixes:
                tasks.start_soon(self._subject.listen, self._receive)
                tasks.start_soon(self._broadcast.run)
            task_status.started()
            while True:
                await anyio.sleep(_SWEEP_S)
                self.sweep()

    def sweep(self) -> None:
        """Forget replicas that are no more, and prompts of long ago."""
        routes, now_s = {route.id for route in self._tables.routes()}, self._clock.monotonic()
        for tree in self._trees.values():
            tree.keep(routes, now_s)
        for model in [model for model, tree in self._trees.items() if not len(tree)]:
            del self._trees[model]

    async def _publish(self) -> bool:
        if self._subject is None:
            return True
        told, self._untold = self._untold[:_CHAINS_MAX], self._untold[_CHAINS_MAX:]
        if told:  # What is lost is only a hint.
            await self._subject.publish(PromptsSeen(frontend=self._frontend, seen=tuple(told)))
        if self._untold:
            self._broadcast.send()
        return True

    def _receive(self, message: PromptsSeen) -> None:
        now_s = self._clock.monotonic()
        for one in message.seen[:_CHAINS_MAX]:
            if one.model in self._tables.now.models:
                route = (ReplicaKey(one.model, one.index), one.change)
                self._trees[one.model].observe(one.chain[:WINDOWS_MAX], route, now_s)


def balance_of(config: ModelConfig) -> Balance:
    apart, times = config.balance_abs_threshold, config.balance_rel_threshold
    match = config.min_prefix_match
    if not (apart or times or match):
        return BALANCE
    return Balance(apart or BALANCE.apart, times or BALANCE.times, match or BALANCE.least_match)
