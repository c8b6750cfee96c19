"""What running code is made of: every attribute of every object of ours that can be reached, by class and
name. Used to see that a setting has arrived in what was built, wherever that is."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from functools import partial
from types import AsyncGeneratorType, CoroutineType, FunctionType, MethodType

from pydantic import BaseModel, SecretStr

from remuda.core.settings import Settings

Attributes = dict[str, list[object]]
"""`Class.attribute`, and `function.variable` for what a function keeps, with all values found there."""


def running_things() -> list[object]:
    """What the tasks of the running event loop are at work on."""
    return [task.get_coro() for task in asyncio.all_tasks()]


def attributes(*roots: object) -> Attributes:
    found: Attributes = defaultdict(list)
    seen: set[int] = set()
    kept: list[object] = []  # Some parts are made while looking: their ids must not be used again.
    todo = list(roots)
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, Settings):
            continue
        seen.add(id(thing))
        kept.append(thing)
        for name, value in _named_parts(thing):
            found[name].append(value.get_secret_value() if isinstance(value, SecretStr) else value)
            todo.append(value)
        todo += _parts(thing)
    return dict(found)


def _named_parts(thing: object) -> list[tuple[str, object]]:
    if isinstance(thing, FunctionType):
        cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True)
        return [(f"{thing.__name__}.{name}", cell.cell_contents) for name, cell in cells if _filled(cell)]
    kind = type(thing)
    if isinstance(thing, type) or not kind.__module__.startswith(("remuda.", "tests.")):
        return []
    slots = [name for base in kind.__mro__ for name in _slots(base)]
    names = [*getattr(thing, "__dict__", {}), *slots]
    if isinstance(thing, BaseModel):
        names = list(type(thing).model_fields)
    return [(f"{kind.__name__}.{name}", getattr(thing, name)) for name in names if hasattr(thing, name)]


def _parts(thing: object) -> list[object]:
    match thing:
        case MethodType():
            return [thing.__self__]
        case partial():
            return [thing.func, *thing.args, *thing.keywords.values()]
        case CoroutineType():
            own = list(thing.cr_frame.f_locals.values()) if thing.cr_frame else []
            return [*own, thing.cr_await]
        case AsyncGeneratorType():
            return list(thing.ag_frame.f_locals.values()) if thing.ag_frame else []
        case str() | bytes():
            return []
        case Mapping():
            return list(thing.values())
        case Sequence() | Set() if not isinstance(thing, range):
            return list(thing)
        case _:
            return []


def _slots(kind: type) -> Sequence[str]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _filled(cell: object) -> bool:
    try:
        cell.cell_contents  # type: ignore[attr-defined]  # noqa: B018
    except ValueError:
        return False
    return True
