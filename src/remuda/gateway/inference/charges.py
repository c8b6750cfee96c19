"""What a request is charged to the limits of its key: what it may take before it is sent, and what it took
when it is over.
"""

from typing import Final

from remuda.accounts.keys import ApiKey
from remuda.accounts.limiter import KeyLimits
from remuda.gateway.client_response import ClientResponse
from remuda.inference.media_requests import MediaRequest
from remuda.inference.model import Request
from remuda.inference.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    RerankRequest,
    media_of,
)

_WITH_TOKENS: Final = (ChatRequest, CompletionRequest)  # Tuples: a union is made anew each time it is named.
_WITH_PROMPTS: Final = (*_WITH_TOKENS, EmbeddingRequest, RerankRequest)
_BYTES_PER_TOKEN: Final = 4
_TOKENS_OF_MEDIA: Final = 1000  # Of an image or a recording, about: their bytes tell nothing.
_PROMPT_TOKENS_MAX: Final = 1 << 17  # Pictures are in bodies, too, and are no text: only so much is believed.


CHARGE: Final = "remuda.charge"  # Of a request's scope: what was set aside for it before.


async def charge(
    limits: KeyLimits,
    key: ApiKey,
    request: Request | MediaRequest,
    context: int | None,
    body_bytes: int,
    response: ClientResponse,
) -> None:
    """Set aside what the request may take, unless it was before. LimitReached where its key may not."""
    if response.charge is not None:
        return
    try:
        prompt, answer = _prompt_tokens(request, context, body_bytes), _answer_tokens(request)
        at_once = limits.admit_at_once(key, prompt, answer)
        response.charge = await limits.admit(key, prompt, answer) if at_once is None else at_once
    finally:
        response.limits = limits.standing(key.id)


def settle(limits: KeyLimits, response: ClientResponse) -> None:
    """The request is over. One whose tokens were not counted costs its prompt, if a replica began it."""
    held, tally = response.charge, response.tally
    if held is None:
        return
    prompt = tally.prompt_tokens
    if not prompt and (tally.completion_tokens or tally.first_token_s is not None):
        prompt = held.prompt_tokens
    limits.settle(held, prompt + tally.completion_tokens, tally.completion_tokens)


def _prompt_tokens(request: Request | MediaRequest, context: int | None, body_bytes: int) -> int:
    """As estimated: the model alone could count them."""
    if not isinstance(request, _WITH_PROMPTS):
        return 0
    most, media_tokens = context or _PROMPT_TOKENS_MAX, 0
    if isinstance(request, ChatRequest):
        count, size = media_of(request)
        body_bytes, media_tokens = max(body_bytes - size, 0), count * _TOKENS_OF_MEDIA
    return min(-(-body_bytes // _BYTES_PER_TOKEN) + media_tokens, most)


def _answer_tokens(request: Request | MediaRequest) -> int | None:
    """The most that the answers may have; None: as many as the model likes."""
    if not isinstance(request, _WITH_TOKENS):
        return 0
    bound = request.max_tokens
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        bound = request.max_completion_tokens
    return None if bound is None else bound * (request.n or 1)
