"""What a request to a paid server can cost at most, and the part of a month's budget that one frontend has
taken for itself and spends from. Pure.

Frontends take parts of the budget from the store, where the sum of what was taken never exceeds it, and spend
only what they have taken. What a frontend had taken when it died is lost for the month, never spent twice.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Final

from remuda.core.prices import Money, TokenPrice
from remuda.inference.media_requests import MediaRequest
from remuda.inference.model import InferenceCall, Request
from remuda.inference.requests import (
    NULL,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    RerankRequest,
    answer_count,
    media_of,
)

_TOKENS_BESIDE: Final = 1024  # Of a prompt: what a chat's template puts around the messages.
_TOKENS_OF_MEDIA: Final = 8192  # Of each image or recording, which may have more than it has bytes.
_PARTS: Final = 100  # A frontend takes so many parts of a budget one after the other.
_CHUNK_MIN: Final = 1


def month_of(now: datetime) -> str:
    """By which budgets count: calendar months, UTC."""
    return f"{now:%Y-%m}"


def answer_limit(request: Request | MediaRequest, default: int) -> int:
    """How many tokens each answer can have; 0: nothing limits it, or there is none. Of two limits it is the
    larger: which of them a server goes by is not known."""
    if not isinstance(request, ChatRequest | CompletionRequest):
        return 0
    own = request.max_tokens or 0
    if isinstance(request, ChatRequest):
        own = max(own, request.max_completion_tokens or 0)
    return own or default


def tokens_limit(request: Request | MediaRequest, default: int) -> int | None:
    """How many tokens all answers together can have. None: nothing limits them."""
    if isinstance(request, EmbeddingRequest | RerankRequest):
        return 0
    if not isinstance(request, ChatRequest | CompletionRequest):
        return None
    each = answer_count(request)
    if isinstance(request, CompletionRequest):
        each = max(each, request.best_of or 1)
    limit = answer_limit(request, default)
    return limit * each if limit else None


def prompt_tokens_max(call: InferenceCall) -> int:
    """A token has at least one byte, so a prompt has no more tokens than its request has bytes; but for
    media, whose bytes are no text, and for what the server adds."""
    request = call.request
    prompts = len(request.prompt) if isinstance(request, CompletionRequest) and _many(request.prompt) else 1
    count, size = media_of(request) if isinstance(request, ChatRequest) else (0, 0)
    return max(len(call.body) - size, 0) + _TOKENS_BESIDE * prompts + _TOKENS_OF_MEDIA * count


def cost_max(call: InferenceCall, price: TokenPrice, answer_tokens: int) -> Money:
    """A prompt that the server is to keep for later ones costs up to twice as much."""
    times = 2 if keeps_prompt(call.request) else 1
    return price.cost(times * prompt_tokens_max(call), answer_tokens)


def keeps_prompt(request: Request | MediaRequest) -> bool:
    if not isinstance(request, ChatRequest):
        return False
    marks = [part.cache_control for part in (*request.messages, *(request.tools or ()))]
    for message in request.messages:
        if isinstance(message.content, list):
            marks += (part.cache_control for part in message.content)
    return any(mark is not NULL and bytes(mark) != b"null" for mark in marks)


class PaidEnding(Enum):
    """Of a request that was sent to a paid server."""

    FINISHED = auto()
    REFUSED = auto()  # Nothing was done for it.
    BROKEN_OFF = auto()  # By the server, or because its client left.


def settled_cost(ending: PaidEnding, reserved: Money, told: Money | None) -> Money:
    """What a request has cost, for the budget and for the usage of keys alike. `told`: by the server's own
    count of tokens; None: it gave none. One that broke off may have gone on there for as long as was
    reserved, whatever it had counted until then."""
    if ending is PaidEnding.REFUSED:
        return 0
    if ending is PaidEnding.FINISHED:
        return reserved if told is None else told
    return max(reserved, told or 0)


def _many(prompt: str | Sequence[object]) -> bool:
    return not isinstance(prompt, str)


class Purse:
    """What one frontend has of one server's budget for one month."""

    def __init__(self) -> None:
        self.taken: Money = 0
        self.reserved: Money = 0
        self.spent: Money = 0

    @property
    def free(self) -> Money:
        return self.taken - self.reserved - self.spent

    def lacks(self, amount: Money) -> Money:
        """How much more has to be taken before so much can be reserved."""
        return max(amount - self.free, 0)

    def reserve(self, amount: Money) -> bool:
        if amount > self.free:
            return False
        self.reserved += amount
        return True

    def settle(self, reserved: Money, cost: Money) -> None:
        """A request that had so much reserved has cost so much."""
        self.reserved -= reserved
        self.spent += cost

    def give_back(self) -> Money:
        """All that is free, which is this frontend's no more. Less than nothing, when a server has taken more
        than it was asked for: that is taken, too."""
        free = self.free
        self.taken -= free
        return free


def chunk(budget: Money, lacking: Money) -> Money:
    """How much to take at once: enough for the request, and not for each of them anew."""
    return max(lacking, budget // _PARTS, _CHUNK_MIN)
