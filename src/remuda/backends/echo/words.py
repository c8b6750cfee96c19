"""What echo answers: text as word tokens, and numbers made from text alone. Pure."""

import hashlib
import math
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remuda.rpc import backend_pb2 as pb

ANSWER_TOKENS_MAX = 1 << 20
_TOKEN = re.compile(r"\s*\S+|\s+\Z")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class EchoAnswer:
    """What will be said, decided before the first word is."""

    tokens: Sequence[str]
    prompt_tokens: int
    stop: str = ""  # The stop sequence at which they end.

    @property
    def text(self) -> str:
        return "".join(self.tokens)


def split_tokens(text: str) -> list[str]:
    """Words with the space before them: joined, they are the text again."""
    return _TOKEN.findall(text)


def answer_to(request: pb.PredictOptions) -> EchoAnswer:
    """The user's last words or the prompt, cut by `Tokens` and `StopPrompts` or repeated by `IgnoreEOS`."""
    user_contents = [message.content for message in request.Messages if message.role == "user"]
    user_contents = user_contents or _contents(request)
    most = min(request.Tokens, ANSWER_TOKENS_MAX) if request.Tokens > 0 else ANSWER_TOKENS_MAX
    tokens = split_tokens(user_contents[-1])
    if request.IgnoreEOS and request.Tokens > 0 and tokens:
        tokens = split_tokens(" ".join([user_contents[-1]] * math.ceil(most / len(tokens))))
    text = "".join(tokens[:most])
    found = [(text.find(stop), stop) for stop in request.StopPrompts if stop and stop in text]
    at, stop = min(found, default=(-1, ""))
    return EchoAnswer(split_tokens(text[:at] if stop else text), len(prompt_tokens(request)), stop)


def prompt_tokens(request: pb.PredictOptions) -> list[str]:
    """Of all messages, or of the prompt."""
    return [token for content in _contents(request) for token in split_tokens(content)]


def _contents(request: pb.PredictOptions) -> list[str]:
    return [message.content for message in request.Messages] or [request.Prompt]


def token_id(token: str) -> int:
    """The same for the same token, in every process; fits an int32."""
    return zlib.crc32(token.encode()) & 0x7FFFFFFF


def logprobs_of(tokens: Sequence[str], alternatives: int) -> Mapping[str, object]:
    """Made up, in the shape of the OpenAI API: each token, then less likely ones."""
    return {
        "content": [
            {**_likely(token, 0), "top_logprobs": [_likely(token, rank) for rank in range(alternatives)]}
            for token in tokens
        ]
    }


def _likely(token: str, rank: int) -> Mapping[str, object]:
    shown = token + "~" * rank
    return {
        "token": shown,
        "logprob": -(token_id(token) % 1000 + 1) / 1000 - rank,
        "bytes": list(shown.encode()),
    }


def unit_vector(text: str, width: int) -> list[float]:
    """As long as `width`, of length one, and a matter of the text alone."""
    raw = hashlib.shake_256(text.encode()).digest(2 * width)
    numbers = [2 * number + 1 for number in struct.unpack(f"<{width}h", raw)]  # Odd, so never all zero.
    length = math.hypot(*numbers)
    return [number / length for number in numbers]


def ranked(query: str, documents: Sequence[str]) -> list[tuple[float, int]]:
    """Score and index of each document, best first: the share of the query's words that it holds."""
    wanted = _words(query)
    scores = [len(wanted & _words(text)) / max(len(wanted), 1) for text in documents]
    return sorted(((score, index) for index, score in enumerate(scores)), key=lambda pair: -pair[0])


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
