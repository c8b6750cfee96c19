"""Holds requests to the limits of their keys, from memory: what this frontend may spend is claimed in the
store in the background, before it is needed. A request waits for that only where nothing was set aside yet,
and not for long; while the store is away, frontends go by their parts of what they last knew of.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus
from msgspec import Struct

from remuda.accounts.budgets import ALWAYS, QUOTAS, Lease, LeaseClaim, LimitKind, LimitSpan, limits_of
from remuda.accounts.keys import ApiKey
from remuda.accounts.limit_state import LimitReached, LimitState, QuotaUsedUp
from remuda.accounts.shares import LimitShare
from remuda.accounts.terms import KeyTerms
from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.errors import RemudaError, Unavailable

log = structlog.get_logger()
_EVERY_S: Final = 1.0
_GAP_S: Final = 0.02  # Between two looks into the store, however many requests wait.
_TYPICAL_TOKENS: Final = 256  # Of an answer whose length is not bounded, until there were some.
_AWAY_S: Final = 3.0  # For so long the store may be late before frontends go by their parts.
_UNKNOWN: Final = "the database did not say in time what is left of this key's limits"
_SLOWLY: Final = 0.9
_UNDER_WAY_S: Final = 1.0  # When a request will be over is not known.


class LeaseStore(Protocol):
    async def claim(self, holder: str, claims: Sequence[LeaseClaim]) -> tuple[Sequence[Lease], datetime]:
        """What each claim is answered with, and the database's time. `holder` is one process's own."""
        ...


class Charge(Struct, frozen=True):
    """What was set aside for one request: of each of `shares`, in which span, and how much."""

    key: str
    shares: "Shares"
    spans: tuple[LimitSpan, ...]
    set_aside: tuple[int, ...]
    prompt_tokens: int  # As estimated.
    open_ended: bool  # The answer is not bounded.


class Shares:
    """One frontend's shares of all limits of one key, which each request takes some of together: a tuple of
    them for each request would take as long as everything else that is done for its limits."""

    def __init__(self, every: Sequence[LimitShare]) -> None:
        self.every = tuple(every)
        self.spans = tuple(share.span for share in every)
        self._until = min((span.ends for span in self.spans), default=ALWAYS.ends)
        kinds = {share.kind: share for share in every}
        shown = (tuple(kinds[kind] for kind in some if kind in kinds) for some in _SHOWN)
        self.shown = tuple(some for some in shown if some)
        """Of those in a tuple, clients see one."""

    def at(self, now: datetime) -> None:
        """Begin new spans where the last ones are over."""
        if now >= self._until:
            for share in self.every:
                share.at(now)
            self.spans = tuple(share.span for share in self.every)
            self._until = min(span.ends for span in self.spans)

    def short(self, tokens: int) -> list[LimitShare]:
        """Those of which not enough is set aside."""
        return [share for share in self.every if not share.has(1 if share.of_requests else tokens)]

    def take(self, tokens: int) -> tuple[int, ...] | None:
        """What was set aside of each; None: of some there is not enough, and nothing was."""
        taken = list[int]()
        for share in self.every:
            cost = share.take(1 if share.of_requests else tokens)
            if cost is None:
                for before, cost in zip(self.every, taken, strict=False):
                    before.give_back(cost)
                return None
            taken.append(cost)
        return tuple(taken)


@dataclass(slots=True)
class _KeyState:
    terms: KeyTerms
    shares: Shares
    seen_at: datetime  # When a request last asked to be admitted.
    typical: float = _TYPICAL_TOKENS
    name: str = field(default="", kw_only=True)


class KeyLimits:
    """`holder` is new with every start: what an earlier process has spent stays spent. `listed`: the keys
    that there are."""

    def __init__(
        self, store: LeaseStore, clock: Clock, holder: str, listed: Callable[[], Sequence[ApiKey]]
    ) -> None:
        self._listed = listed
        self._store = store
        self._clock = clock
        self._holder = holder
        self._keys: dict[str, _KeyState] = {}
        self._ahead = timedelta()  # The database's clock, of ours.
        self._asked = anyio.Event()
        self._answered = anyio.Event()
        self._answered_s = clock.monotonic()
        self._waiting = 0

    async def admit(self, key: ApiKey, prompt_tokens: int, answer_tokens: int | None) -> Charge:
        """Set aside what the request may take. LimitReached where the key may not take it. `answer_tokens`:
        None where the answer is not bounded."""
        charge = self.admit_at_once(key, prompt_tokens, answer_tokens)
        if charge is not None:
            return charge
        state = self._state(key)
        tokens = _tokens(state, prompt_tokens, answer_tokens)
        await self._when_leased(state, tokens)
        set_aside = state.shares.take(tokens)
        assert set_aside is not None, "so much was found"
        return _charge(key, state, set_aside, prompt_tokens, answer_tokens)

    def admit_at_once(self, key: ApiKey, prompt_tokens: int, answer_tokens: int | None) -> Charge | None:
        """What `admit` returns, where it need not wait, as it nearly never has to; else None."""
        state = self._state(key)
        set_aside = state.shares.take(_tokens(state, prompt_tokens, answer_tokens))
        if set_aside is None:
            return None
        return _charge(key, state, set_aside, prompt_tokens, answer_tokens)

    def settle(self, charge: Charge, tokens: int, answer_tokens: int) -> None:
        """The request is over, and took so many tokens altogether."""
        for share, span, set_aside in zip(charge.shares.every, charge.spans, charge.set_aside, strict=True):
            if not share.of_requests:
                share.settle(span, set_aside, tokens)
            elif share.kind is LimitKind.CONCURRENT_REQUESTS:
                share.settle(span, set_aside, 0)
                if share.withholds:
                    self._asked.set()
        state = self._keys.get(charge.key)
        if state is not None and charge.open_ended and answer_tokens:
            state.typical = max(float(answer_tokens), _SLOWLY * state.typical)

    def standing(self, key_id: str) -> Sequence[LimitState]:
        """How the limits of a key stand that clients see, for a request that was just admitted or
        refused: one on requests, and one on tokens."""
        state = self._keys.get(key_id)
        if state is None:
            return []
        return [_standing(shares, state.seen_at) for shares in state.shares.shown]

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        turned_s = self._clock.monotonic()
        try:
            while True:
                with anyio.move_on_after(_EVERY_S):
                    await self._asked.wait()
                self._asked = anyio.Event()
                await self.exchange()
                if self._clock.monotonic() - turned_s >= _EVERY_S:
                    turned_s = self._clock.monotonic()
                    self._turn()
                await anyio.sleep(_GAP_S)
        finally:
            with anyio.move_on_after(limits.STORE_PING_S, shield=True):
                await self._release()

    async def exchange(self) -> None:
        """Tell the store what is due, and ask it for what will be needed."""
        now = self._now()
        for state in self._keys.values():
            state.shares.at(now)
        due = [share for share in self._shares() if share.due(now)]
        for start in range(0, len(due), limits.KEY_CLAIMS_AT_ONCE_MAX):
            if not await self._exchange(due[start : start + limits.KEY_CLAIMS_AT_ONCE_MAX]):
                break
        answered, self._answered = self._answered, anyio.Event()
        answered.set()

    async def _exchange(self, due: Sequence[LimitShare]) -> bool:
        """Whether the store has answered."""
        try:
            with anyio.fail_after(limits.STORE_PING_S):
                leases, now = await self._store.claim(self._holder, [share.claim() for share in due])
        except (RemudaError, TimeoutError) as error:
            log.warning("key_limits_not_shared", reason=str(error))
            if self._clock.monotonic() - self._answered_s >= _AWAY_S:
                for share in self._shares():
                    share.store_away()
            return False
        self._answered_s = self._clock.monotonic()
        self._ahead = now - self._clock.now()
        for share, lease in zip(due, leases, strict=True):
            share.leased(lease, now)
        return True

    async def _release(self) -> None:
        claims = [share.release() for share in self._shares()]
        for start in range(0, len(claims), limits.KEY_CLAIMS_AT_ONCE_MAX):
            try:
                await self._store.claim(self._holder, claims[start : start + limits.KEY_CLAIMS_AT_ONCE_MAX])
            except RemudaError as error:
                log.warning("key_limits_not_released", reason=error.message)
                return

    def _turn(self) -> None:
        kept = {key.id for key in self._listed()}
        self._keys = {key: state for key, state in self._keys.items() if key in kept}
        for share in self._shares():
            share.turn()

    def _shares(self) -> list[LimitShare]:
        return [share for state in self._keys.values() for share in state.shares.every]

    def _now(self) -> datetime:
        return self._clock.now() + self._ahead

    def _state(self, key: ApiKey) -> _KeyState:
        state = self._keys.get(key.id)
        if state is None or state.terms is not key.terms:
            state = self._keys[key.id] = self._limited(key, state)
        state.seen_at = now = self._now()
        state.shares.at(now)
        return state

    def _limited(self, key: ApiKey, before: _KeyState | None) -> _KeyState:
        now = self._now()
        known = {} if before is None else {share.kind: share for share in before.shares.every}
        shares = list[LimitShare]()
        for kind, limit in limits_of(key.terms).items():
            shares.append(known.get(kind) or LimitShare(key.id, kind, limit, now))
            shares[-1].limited_to(limit)
        typical = float(_TYPICAL_TOKENS) if before is None else before.typical
        return _KeyState(key.terms, Shares(shares), now, typical, name=key.name)

    async def _when_leased(self, state: _KeyState, tokens: int) -> None:
        """Wait for the store, where it may have more than is known here: until enough is set aside."""
        shares = state.shares
        if self._waiting >= limits.KEY_CLAIMS_WAITING_MAX:
            raise self._refusal(state, shares.short(tokens), tokens)
        deadline_s = self._clock.monotonic() + limits.KEY_CLAIM_S
        looks = 0
        wanted = [(share, share.cost(1 if share.of_requests else tokens)) for share in shares.every]
        self._waiting += 1
        for share, cost in wanted:
            share.needed += cost
        try:
            while True:
                state.seen_at = now = self._now()
                shares.at(now)  # They may be no key's any more: it was edited meanwhile.
                if not (short := shares.short(tokens)):
                    return
                left_s = deadline_s - self._clock.monotonic()
                refused_by = [share for share in short if share.refused(self._now())]
                if refused_by and looks >= max(share.looks for share in refused_by):
                    raise self._refusal(state, short, tokens)
                if left_s <= 0:
                    raise Unavailable(_UNKNOWN, hint="try again; remuda doctor looks at the database")
                self._asked.set()
                with anyio.move_on_after(left_s):
                    await self._answered.wait()
                looks += 1
        finally:
            self._waiting -= 1
            for share, cost in wanted:
                share.needed -= cost

    def _refusal(self, state: _KeyState, short: Sequence[LimitShare], tokens: int) -> LimitReached:
        """By the limit that is in the way for longest."""
        now = self._now()
        share = max(short, key=lambda one: _resets_in_s(one, now))
        wait_s = max(math.ceil(_resets_in_s(share, now)), 1)
        raised = f"an admin raises it with: remuda keys edit NAME --{share.kind.replace('_', '-')} N"
        hint = f"try again in {wait_s} s; {raised}"
        made = QuotaUsedUp if share.kind in QUOTAS else LimitReached
        return made(_words(state.name, share, tokens), share.kind, wait_s, hint=hint)


def _tokens(state: _KeyState, prompt_tokens: int, answer_tokens: int | None) -> int:
    return prompt_tokens + (math.ceil(state.typical) if answer_tokens is None else answer_tokens)


def _charge(
    key: ApiKey,
    state: _KeyState,
    set_aside: tuple[int, ...],
    prompt_tokens: int,
    answer_tokens: int | None,
) -> Charge:
    shares = state.shares
    return Charge(key.id, shares, shares.spans, set_aside, prompt_tokens, answer_tokens is None)


def _resets_in_s(share: LimitShare, now: datetime) -> float:
    if share.kind is LimitKind.CONCURRENT_REQUESTS:
        return _UNDER_WAY_S
    return max((share.span.ends - now).total_seconds(), 0.0)


_SHOWN: Final = (  # Of each the first that there is, or the longest that is used up.
    (LimitKind.REQUESTS_PER_MINUTE, LimitKind.CONCURRENT_REQUESTS),
    (LimitKind.TOKENS_PER_MINUTE, LimitKind.TOKENS_PER_DAY, LimitKind.TOKENS_PER_MONTH),
)


def _standing(shares: Sequence[LimitShare], now: datetime) -> LimitState:
    """Of the longest that is used up, else of the first."""
    for share in reversed(shares):
        remaining = share.remaining
        if not remaining:
            break
    if share.span is ALWAYS:
        return LimitState(share.of_requests, share.limit, remaining, _UNDER_WAY_S, now)
    ends = share.span.ends
    left_s = (ends - now).total_seconds()
    return LimitState(share.of_requests, share.limit, remaining, left_s if left_s > 0 else 0.0, ends)


_PER: Final[Mapping[LimitKind, str]] = {
    LimitKind.REQUESTS_PER_MINUTE: "per minute",
    LimitKind.TOKENS_PER_MINUTE: "per minute",
    LimitKind.TOKENS_PER_DAY: "per day (UTC)",
    LimitKind.TOKENS_PER_MONTH: "per month (UTC)",
}


def _words(name: str, share: LimitShare, tokens: int) -> str:
    if share.kind is LimitKind.CONCURRENT_REQUESTS:
        return f"the key {name!r} may have {share.limit} requests under way at once, and has them"
    per = _PER[share.kind]
    if share.of_requests:
        return f"the key {name!r} may make {share.limit} requests {per}, and has made them"
    cost = share.cost(tokens)
    return (
        f"the key {name!r} has {share.remaining} tokens left of {share.limit} {per}, and this request may "
        f"take {cost}: its prompt, and the longest answer it allows"
    )
