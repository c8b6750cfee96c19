"""Bounds on what a request asks an engine to make a grammar of, whichever engine that will be. Pure."""

from collections.abc import Iterator
from typing import Final

import msgspec

from remuda.core.errors import Invalid
from remuda.core.gbnf import check_grammar
from remuda.core.schema_shape import SchemaShape
from remuda.core.slices import Sliced
from remuda.inference.model import Request
from remuda.inference.requests import ChatRequest, CompletionRequest

_SIMPLE_BYTES_MAX: Final = 4 << 10  # No schema as short as this is too complex.


def check_complexity(request: Request) -> Sliced[None]:
    """Invalid says what is too large, or nested too deeply."""
    if not isinstance(request, ChatRequest | CompletionRequest):
        return
    if request.grammar:
        yield from check_grammar(request.grammar)
    if isinstance(request, ChatRequest):
        shape = SchemaShape()
        for raw in _schemas(request):
            if len(raw) > _SIMPLE_BYTES_MAX:
                yield from shape.check(_decoded(raw))


def _schemas(request: ChatRequest) -> Iterator[bytes]:
    for tool in request.tools or ():
        yield bytes(tool.function.parameters)
    if request.response_format is not None and request.response_format.json_schema is not None:
        yield bytes(request.response_format.json_schema.schema)


def _decoded(raw: bytes) -> object:
    try:
        value: object = msgspec.json.decode(raw)
    except RecursionError:
        raise Invalid("a JSON schema is nested too deeply") from None
    return value
