"""Parameters of routes. Text in a path that cannot name anything is rejected here: some databases cannot
even look it up. Unknown filters of a list are rejected too: a misspelled one would be ignored and show
everything."""

from typing import Annotated
from urllib.parse import unquote

from fastapi import Depends, Path, Request
from fastapi.routing import APIRoute
from pydantic import AfterValidator

from remuda.core.errors import Invalid, NotFound
from remuda.core.hints import did_you_mean
from remuda.core.ids import NodeId
from remuda.ops.model import OpId
from remuda.wire.nodes import label_problem


def node_id_text(text: str) -> NodeId:
    if not text.isprintable():
        raise NotFound("node not found")
    return NodeId(text)


def _api_key(text: str) -> str:
    if not text.isprintable():
        raise NotFound("there is no key with this id")
    return text


def _label_key(text: str) -> str:
    if problem := label_problem(text, ""):
        raise Invalid(problem)
    return text


def _op(text: str) -> str:
    """Whatever is not the id of an operation is none's; ids are looked up, and never put into subjects."""
    if not text.isprintable() or len(text) > _ID_CHARS_MAX:
        raise NotFound("there is no operation with this id")
    return text


def _backend(text: str) -> str:
    """Peers encode it once more than URLs need it."""
    name = unquote(text).strip()
    if not name or not name.isprintable() or len(name) > _NAME_CHARS_MAX:
        raise NotFound("there is no backend of this name")
    return name


def model_name(text: str) -> str:
    if not text.isprintable() or len(text) > _NAME_CHARS_MAX:
        raise NotFound("there is no model of this name")
    return text


_ID_CHARS_MAX = 100
_NAME_CHARS_MAX = 1024

NodePath = Annotated[
    NodeId,
    AfterValidator(node_id_text),
    Path(alias="node_id", description="The id that registration answered."),
]
KeyPath = Annotated[str, AfterValidator(_api_key), Path(alias="key_id", description="The key's id.")]
LabelPath = Annotated[str, AfterValidator(_label_key), Path(alias="key", description="The label's key.")]
OpPath = Annotated[OpId, AfterValidator(_op), Path(alias="op_id", description="The operation's id.")]
ModelPath = Annotated[
    str, AfterValidator(model_name), Path(alias="model", description="The model's name, slashes included.")
]
BackendPath = Annotated[
    str,
    AfterValidator(_backend),
    Path(alias="backend", description="Its name, or gallery@name; may be URL-encoded twice."),
]


async def _known_filters(request: Request) -> None:
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = sorted(field.alias for field in route.dependant.query_params)
    unknown = next((name for name in request.query_params if name not in known), None)
    if unknown is not None:
        hint = did_you_mean(unknown, known, f"there are {', '.join(known)}")
        raise Invalid(f"unknown filter {unknown[:100]!r}", hint=hint)


KNOWN_FILTERS = Depends(_known_filters)
