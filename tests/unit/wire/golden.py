"""Literal payloads of every message, kept as JSON files; a sample is compact text once read."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from pydantic import BaseModel

from remuda.wire import backends, broadcasts, files, models, node_facts, nodes

FOLDER = Path(__file__).parents[2] / "fixtures" / "wire"
MODULES = (nodes, node_facts, backends, models, files, broadcasts)


class Sample(NamedTuple):
    message: type[BaseModel]
    name: str
    payload: bytes


def messages(module: ModuleType) -> dict[str, type[BaseModel]]:
    """The messages that a module of `wire` defines itself."""
    return {
        name: found
        for name, found in inspect.getmembers(module, inspect.isclass)
        if issubclass(found, BaseModel) and found.__module__ == module.__name__ and name.isidentifier()
    }


def samples() -> Iterator[Sample]:
    for module in MODULES:
        known = messages(module)
        documents = json.loads((FOLDER / f"{module.__name__.rpartition('.')[2]}.json").read_text("utf-8"))
        for message, named in documents.items():
            for name, document in named.items():
                text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
                yield Sample(known[message], name, text.encode())


ALL = tuple(samples())
