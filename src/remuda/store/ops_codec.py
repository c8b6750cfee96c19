"""Values kept as JSON text. Rows outlive releases: what is not known is skipped, and what is missing has its
default, so a field that is added to such a value needs one."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Final, TypeVar

from pydantic import Field, TypeAdapter
from sqlalchemy import Dialect, Text, TypeDecorator

from remuda.core.ids import ReplicaKey
from remuda.ops.model import ModelSpec, ReplicaTarget, Source, UnloadCause, UnloadReason
from remuda.ops.reasons import StepCause, StepReason, because, reason_in_words

T = TypeVar("T")

_VALUES_KEPT = 4096  # Many rows hold the same values, and all are read again and again.


class Document(TypeDecorator[T]):
    """An immutable value of one type. The same value is always the same text, so columns can be compared."""

    impl = Text
    cache_ok = True

    def __init__(self, of: type[T]) -> None:
        super().__init__()
        self.of = of

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        return TypeAdapter(self.of)

    @cached_property
    def _read(self) -> Callable[[str], T]:
        return lru_cache(_VALUES_KEPT)(self._adapter.validate_json)

    def process_bind_param(self, value: T | None, dialect: Dialect) -> str | None:
        return None if value is None else self._adapter.dump_json(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> T | None:
        return None if value is None else self._read(value)


# Why replicas are unloaded. The words are kept beside it: earlier releases know nothing else.


@dataclass(frozen=True, slots=True)
class StoredReason:
    cause: str
    by: str = ""
    for_model: str = ""
    for_replica: int = 0


_TOLD: Final = {
    "nobody asked for it": UnloadCause.IDLE,
    "its configuration changed": UnloadCause.OUTDATED,
    "the owner of its machine uses the GPU": UnloadCause.GIVES_WAY,
    "its model was removed": UnloadCause.MODEL_REMOVED,
    "the model was removed": UnloadCause.MODEL_REMOVED,
    "its model was renamed": UnloadCause.MODEL_RENAMED,
}
_CAUSES: Final = frozenset(cause.value for cause in UnloadCause)
_ASKED_BY: Final = "asked for by "
_ROOM_FOR: Final = "makes room for "


def stored_reason(reason: UnloadReason | None) -> StoredReason | None:
    if reason is None or reason.cause is UnloadCause.UNKNOWN:
        return None
    return StoredReason(reason.cause, reason.by, *(reason.for_replica or ()))


def reason_of(words: str, stored: StoredReason | None) -> UnloadReason | None:
    """What is stored counts only where it says the same as the words: a release that does not know it has
    written other words, and left it as it was."""
    if not words:
        return None
    typed = None if stored is None else _typed(stored)
    return typed if typed is not None and str(typed) == words else _by_words(words)


def _typed(stored: StoredReason) -> UnloadReason | None:
    """None for one that a later release has written."""
    if stored.cause not in _CAUSES:
        return None
    room_for = ReplicaKey(stored.for_model, stored.for_replica) if stored.for_model else None
    return UnloadReason(UnloadCause(stored.cause), stored.by, room_for)


def _by_words(words: str) -> UnloadReason:
    """As releases wrote them that knew nothing else."""
    if words in _TOLD:
        return UnloadReason(_TOLD[words])
    if words.startswith(_ASKED_BY):
        return UnloadReason(UnloadCause.ASKED, by=words.removeprefix(_ASKED_BY))
    model, _, index = words.removeprefix(_ROOM_FOR).rpartition("#")
    if words.startswith(_ROOM_FOR) and index.isdecimal():
        return UnloadReason(UnloadCause.MAKES_ROOM, for_replica=ReplicaKey(model, int(index)))
    return UnloadReason(UnloadCause.UNKNOWN, text=words)


# Why steps wait, or how they ended. Here, too, the words are kept beside it.


@dataclass(frozen=True, slots=True)
class StoredStepReason:
    cause: str
    details: tuple[str, ...] = ()


_STEP_CAUSES: Final = frozenset(cause.value for cause in StepCause)


def stored_step_reason(why: StepReason | None) -> StoredStepReason | None:
    if why is None or why.cause is StepCause.OTHER:
        return None
    return StoredStepReason(why.cause, why.details)


@lru_cache(_VALUES_KEPT)
def step_reason_of(words: str, stored: StoredStepReason | None) -> StepReason | None:
    """As for unloads: what is stored counts where it says the same as the words."""
    if stored is not None and stored.cause in _STEP_CAUSES:
        with suppress(IndexError):  # A later release may give it more details.
            typed = because(StepCause(stored.cause), *stored.details)
            if str(typed) == words:
                return typed
    return reason_in_words(words)


# What operations are about.


@dataclass(frozen=True, slots=True)
class StoredSource:
    """The source of an operation, and the replica of a load or unload, in one document: so every release
    writes and compares them. `name` has the reason of an unload in words."""

    backend: str
    galleries: str = ""
    uri: str = ""
    name: str = ""
    alias: str = ""
    model: str = ""  # Empty: no load or unload.
    replica: int = 0
    revision: str = ""
    reason: Annotated[StoredReason | None, Field(exclude_if=lambda reason: reason is None)] = None
    spec: Annotated[ModelSpec | None, Field(exclude_if=lambda spec: spec is None)] = None


def stored_source(source: Source, target: ReplicaTarget | None) -> StoredSource:
    if target is None:
        return StoredSource(
            source.backend, source.galleries, source.uri, source.name, source.alias, spec=source.model
        )
    return StoredSource(
        source.backend,
        source.galleries,
        name="" if target.reason is None else str(target.reason),
        model=target.key.model,
        replica=target.key.index,
        revision=target.revision,
        reason=stored_reason(target.reason),
    )


@lru_cache(_VALUES_KEPT)
def source_of(stored: StoredSource) -> Source:
    if stored.model:
        return Source(stored.backend, stored.galleries)
    return Source(stored.backend, stored.galleries, stored.uri, stored.name, stored.alias, model=stored.spec)


@lru_cache(_VALUES_KEPT)
def target_of(stored: StoredSource) -> ReplicaTarget | None:
    if not stored.model:
        return None
    key = ReplicaKey(stored.model, stored.replica)
    return ReplicaTarget(key, stored.revision, reason_of(stored.name, stored.reason))
