"""Why a request went where it did, as frontends tell admins and each other. Ours."""

from typing import Annotated

from remuda.wire.broadcasts import FrontendAnswer, FrontendMessage
from remuda.wire.codec import OMIT_EMPTY, OMIT_NONE, Count, Many, Message, Number, Timestamp


class WaitExplained(Message):
    """What a request waited for, and how long."""

    cause: str
    seconds: Number = 0.0


class TryExplained(Message):
    """A replica that failed the request before it answered anything."""

    node: str
    replica: str = ""  # `model#index`.
    failure: str = ""


class RequestExplanation(Message):
    """What a frontend decided for one request."""

    request_id: str
    frontend: str = ""  # That answered it.
    at: Timestamp  # When it was over.
    model: str = ""  # Empty: it was refused before its model was known.
    caller: Annotated[str, OMIT_EMPTY] = ""  # The name of the key.
    status: Count = 0
    error: Annotated[str, OMIT_EMPTY] = ""  # A code.
    error_message: Annotated[str, OMIT_EMPTY] = ""
    node: Annotated[str, OMIT_EMPTY] = ""  # That answered, or was tried last; of an adopted server its name.
    replica: Annotated[str, OMIT_EMPTY] = ""
    why: Annotated[str, OMIT_EMPTY] = ""  # That one.
    waited_seconds: Number = 0.0
    waits: Annotated[Many[WaitExplained], OMIT_EMPTY] = ()
    tried: Annotated[Many[TryExplained], OMIT_EMPTY] = ()
    reloaded: Annotated[bool, OMIT_EMPTY] = False  # All replicas were gone, and the model was loaded again.
    first_token_seconds: Annotated[Number | None, OMIT_NONE] = None
    total_seconds: Number = 0.0


class DecisionWanted(FrontendMessage):
    """Frontend to frontends, ours: who has answered this request?"""

    request_id: str


class DecisionTold(FrontendAnswer):
    """The answer of each of them. Left out: not this frontend, or too long ago."""

    request_id: str
    found: Annotated[RequestExplanation | None, OMIT_NONE] = None
