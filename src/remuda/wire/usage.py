"""What keys have taken, in answers of the admin API."""

from typing import Annotated

from remuda.wire.codec import OMIT_EMPTY, OMIT_NONE, Many, Message


class UsageCounts(Message):
    """Requests and tokens. `failed` requests are among `requests`, too."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: Annotated[str, OMIT_EMPTY] = ""  # A decimal number; left out where nothing has a price.


class UsageItem(UsageCounts):
    """Frontend to admin: what was taken by one of the groups that were asked for."""

    day: Annotated[str | None, OMIT_NONE] = None
    key_id: Annotated[str | None, OMIT_NONE] = None  # Empty: no key was asked for.
    key: Annotated[str | None, OMIT_NONE] = None  # Its name; else its id, as of a machine's own key.
    model: Annotated[str | None, OMIT_NONE] = None
    node: Annotated[str | None, OMIT_NONE] = None  # Empty: none answered.


class UsageView(Message):
    """Frontend to admin: what was taken from one day to another, both included."""

    since: str
    until: str
    usage: Many[UsageItem] = ()
    total: UsageCounts
