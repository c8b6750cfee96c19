"""What stands in a route's path. Text that names nothing anywhere ends here: some databases cannot even look
for it."""

from typing import Annotated

from fastapi import Path
from pydantic import AfterValidator

from remuda.core.errors import Invalid, NotFound
from remuda.core.ids import NodeId
from remuda.wire.nodes import label_problem


def _node(text: str) -> str:
    if not text.isprintable():
        raise NotFound("node not found")
    return text


def _api_key(text: str) -> str:
    if not text.isprintable():
        raise NotFound("no such key is in force")
    return text


def _label_key(text: str) -> str:
    if problem := label_problem(text, ""):
        raise Invalid(problem)
    return text


NodePath = Annotated[
    NodeId, AfterValidator(_node), Path(alias="node_id", description="The id that registration answered.")
]
KeyPath = Annotated[str, AfterValidator(_api_key), Path(alias="key_id", description="The key's id.")]
LabelPath = Annotated[str, AfterValidator(_label_key), Path(alias="key", description="The label's key.")]
