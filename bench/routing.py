"""What choosing a replica costs, and how much of prompts the chosen replicas have read before.

`python -m bench.routing` prints microseconds for a decision among eight replicas, by each policy, and the
share of windows that are cached in a trace of conversations, by prefix and in turn.
"""

import random
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from remuda.core.clock import SystemClock
from remuda.core.ids import NodeId, ReplicaKey
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import ModelConfig
from remuda.router.affinity import choose_by_session
from remuda.router.chooser import ReplicaChooser
from remuda.router.live_table import Tables
from remuda.router.prefixes import PrefixTree, chain
from remuda.router.table import Route, choose
from remuda.router.usage import RequestLedger

_REPLICAS: Final = 8
_ROUNDS: Final = 5
_TIMES: Final = 2_000
_PROMPT_BYTES: Final = 16 << 10
_CONVERSATIONS: Final = 200
_TURNS: Final = 10
_UNDER_WAY: Final = 24  # Requests at once.
_TURN_BYTES: Final = 1200
_SHARED_BYTES: Final = 2000  # The introduction that all conversations have.
MODEL: Final = ModelConfig(name="qwen", backend="echo", route_policy="prefix_cache")


def routes() -> list[Route]:
    return [
        Route(ReplicaKey("qwen", index), NodeId(f"n{index}"), f"n{index}", ReplicaEndpoint(f"n{index}:1"))
        for index in range(_REPLICAS)
    ]


def microseconds(work: Callable[[], object]) -> float:
    """Of the best round: the others were disturbed."""
    best = float("inf")
    for _ in range(_ROUNDS):
        began_s = time.perf_counter()
        for _ in range(_TIMES):
            work()
        best = min(best, (time.perf_counter() - began_s) / _TIMES)
    return best * 1e6


def decisions() -> None:
    ledger, there = RequestLedger(), routes()
    for route in there:
        ledger.begin(route)
    chooser = ReplicaChooser(Tables(), SystemClock())
    text = random.Random(7).randbytes(_PROMPT_BYTES)
    windows = chain("qwen", text)
    chooser.sent(there[3], windows, "")

    def by_prefix() -> object:
        hashed = chain("qwen", text)
        found = chooser.by_prefix(MODEL, there, ledger.load, hashed)
        chooser.sent(there[3], hashed, "")
        return found

    least = microseconds(lambda: choose(there, ledger.load, ledger.last_turn))
    session = microseconds(lambda: choose_by_session(there, list(map(ledger.load, there)), "ada"))
    print(f"least loaded of {_REPLICAS}: {least:.1f} us (aim below 5)")
    print(f"by session: {session:.1f} us")
    print(f"by prefix, {len(windows)} windows: {microseconds(by_prefix):.1f} us (aim below 40)")
    print(f"  of which hashing: {microseconds(lambda: chain('qwen', text)):.1f} us")


def trace() -> list[bytes]:
    """Prompts of conversations, as they come: each turn holds all before it."""
    seeded = random.Random(11)
    introduction = seeded.randbytes(_SHARED_BYTES)
    so_far = [introduction for _ in range(_CONVERSATIONS)]
    turns = [one for one in range(_CONVERSATIONS) for _ in range(_TURNS)]
    seeded.shuffle(turns)
    prompts = list[bytes]()
    for one in turns:
        so_far[one] += seeded.randbytes(_TURN_BYTES)
        prompts.append(so_far[one])
    return prompts


def hit_rates() -> None:
    there, prompts = routes(), trace()
    chooser = ReplicaChooser(Tables(), SystemClock())
    in_turn, matched, total = PrefixTree(), 0, 0
    under_way, given = deque[Route](), Counter[str]()
    for number, prompt in enumerate(prompts):
        windows = chain("qwen", prompt)
        if number >= _UNDER_WAY:
            under_way.popleft()
        found = chooser.by_prefix(MODEL, there, under_way.count, windows)
        assert found is not None
        chooser.sent(found[0], windows, found[1])
        under_way.append(found[0])
        given[found[0].node] += 1
        turn = there[number % len(there)]
        matched += in_turn.match(windows, (turn.id,), 0.0)[0]
        total += len(windows)
        in_turn.observe(windows, turn.id, 0.0)
    figures = chooser.figures
    print(f"{len(prompts)} prompts of {_CONVERSATIONS} conversations, {_REPLICAS} replicas")
    print(f"cached by prefix: {100 * figures.matched['qwen'] / figures.windows['qwen']:.0f} % of windows")
    print(f"cached in turn:   {100 * matched / total:.0f} %")
    print(f"requests of the busiest replica: {max(given.values())}, of the idlest: {min(given.values())}")


if __name__ == "__main__":
    decisions()
    hit_rates()
