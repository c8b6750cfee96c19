"""Events of a response that is made in the background, as one frontend has them from another. Ours."""

from typing import Annotated

from remuda.wire.broadcasts import FrontendAnswer, FrontendMessage
from remuda.wire.codec import OMIT_EMPTY, Count


class ResponseEventsWanted(FrontendMessage):
    """Frontend to frontends, ours: which events has this response after that one? `question` is the asker's
    own number for this."""

    response_id: str
    question: Count
    first: Count  # The number of the first event that is wanted.


class ResponseEventsTold(FrontendAnswer):
    """The answer of the one that has them; the others say nothing."""

    question: Count
    events: Annotated[str, OMIT_EMPTY] = ""  # Those that there are, or the first of them.
    next: Count  # The number of the event that comes after these.
    ended: Annotated[bool, OMIT_EMPTY] = False  # That one tells the end, which is in the store.
