"""How many replicas of a model are wanted, where, and for how long: declared in its YAML, or by an admin,
whose word counts more. Data, and how the two are put together. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Final, Protocol

from remuda.core.durations import render as span
from remuda.models.config import ModelConfig

ROUTE_POLICIES: Final = ("", "round_robin", "least_loaded", "prefix_cache", "session")


@dataclass(frozen=True, slots=True)
class SchedulingTerms:
    """What an admin has declared. The counts replace those of the YAML together; a selector, `pinned` and
    `keep_alive` replace theirs where they say something."""

    min_replicas: int = 0
    max_replicas: int = 0  # 0: no limit but what nodes take.
    everywhere: bool = False  # One on each node that matches.
    selector: Mapping[str, str] = field(default_factory=dict)
    pinned: bool | None = None
    keep_alive: timedelta | None = None  # Less than nothing is for ever.
    # Of routing; 0 and empty inherit.
    route_policy: str = ""
    balance_abs_threshold: int = 0
    balance_rel_threshold: float = 0.0
    min_prefix_match: float = 0.0


@dataclass(frozen=True, slots=True)
class Cooldown:
    """A model whose declared replicas could not all be had is left alone until then, unless the fleet
    changes: `fleet` is a fingerprint of what could make a difference."""

    attempts: int
    until: datetime
    fleet: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class ModelScheduling:
    """What is stored for one model, which need not be configured yet."""

    model: str
    terms: SchedulingTerms
    id: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    cooldown: Cooldown | None = None


class SchedulingStore(Protocol):
    async def scheduling(self) -> Sequence[ModelScheduling]:
        """By model."""
        ...

    async def put_scheduling(self, model: str, terms: SchedulingTerms) -> ModelScheduling: ...

    async def remove_scheduling(self, model: str) -> bool:
        """False: there was none."""
        ...

    async def cooldowns(self) -> Mapping[str, Cooldown]:
        """By model."""
        ...

    async def put_cooldown(self, model: str, cooldown: Cooldown | None) -> None:
        """None: it is over."""
        ...


def effective(config: ModelConfig, terms: SchedulingTerms | None) -> ModelConfig:
    """The configuration by which the model is scheduled. Its revision stays the same."""
    if terms is None:
        return config
    said: dict[str, object] = {
        "min_replicas": terms.min_replicas,
        "max_replicas": terms.max_replicas,
        "replicas": "all" if terms.everywhere else "",
    }
    if terms.selector:
        said["selector"] = dict(terms.selector)
    if terms.pinned is not None:
        said["pinned"] = terms.pinned
    if terms.keep_alive is not None:
        said["keep_alive"] = terms.keep_alive
    for name in ("route_policy", "balance_abs_threshold", "balance_rel_threshold", "min_prefix_match"):
        if value := getattr(terms, name):
            said[name] = value
    return config.model_copy(update=said)


def wanted_in_words(config: ModelConfig) -> str:
    """How many replicas it is to have, for people."""
    if config.everywhere:
        return "one on every node that matches"
    most = f"at most {config.max_replicas}" if config.max_replicas else "as many as nodes take"
    if config.min_replicas:
        exactly = config.min_replicas == config.max_replicas
        return f"exactly {config.min_replicas}" if exactly else f"at least {config.min_replicas}, {most}"
    return f"none until it is asked for, {most}" if config.max_replicas else "one while it is used"


def cooldown_in_words(cooldown: Cooldown, now: datetime) -> str:
    """Empty: it is over."""
    left = cooldown.until - now
    if left <= timedelta():
        return ""
    return f"tried again in {span(timedelta(seconds=ceil(left.total_seconds())))}: {cooldown.why}"
