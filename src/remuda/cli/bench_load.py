"""What `remuda bench` sends: streamed chats, so many at once, each timed; and what their times come to."""

import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from remuda.cli.client import AdminClient
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import PeerFailed, RemudaError
from remuda.core.sse import SseParser
from remuda.wire.benchmarks import MeasuredSpeed

_QUIET_S: Final = 600.0
_ONLY_NODE: Final = "x-remuda-node"
# About two tokens each. Drawn by chance, so that no two prompts begin alike: an engine that has read the
# beginning before would seem faster than it is.
_WORDS: Final = tuple(
    f"{first}{second}"
    for first in ("sun", "rain", "snow", "wind", "fire")
    for second in ("day", "fall", "light", "storm", "side")
)


@dataclass(frozen=True, slots=True)
class ChatShape:
    """How long the requests of a measurement are, in tokens, as nearly as words tell."""

    prompt_tokens: int
    tokens: int


@dataclass(slots=True)
class TimedChat:
    """One streamed answer. Clock readings are monotonic seconds."""

    began_s: float
    first_s: float | None = None
    ended_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: RemudaError | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """Chats that were sent at once."""

    chats: Sequence[TimedChat]

    @property
    def seconds(self) -> float:
        return max(chat.ended_s for chat in self.chats) - min(chat.began_s for chat in self.chats)


class ChatLoad:
    """Sends chats to one model, by way of `connect`, which makes a client for each of them."""

    def __init__(
        self, model: str, connect: Callable[[], AdminClient], clock: Clock, entropy: Entropy
    ) -> None:
        self._model = model
        self._connect = connect
        self._clock = clock
        self._entropy = entropy
        self._stopped = threading.Event()  # By Ctrl-C: what is under way ends at its next event.

    def round(self, shape: ChatShape, streams: int, node: str) -> Round:
        """So many chats at once. Their failures are kept with them."""
        bodies = [self._body(shape) for _ in range(streams)]
        with ThreadPoolExecutor(streams) as threads:
            try:
                return Round(list(threads.map(lambda body: self._timed(body, node), bodies)))
            except KeyboardInterrupt:
                self._stopped.set()
                raise

    def _body(self, shape: ChatShape) -> dict[str, object]:
        draw = self._entropy.fraction
        words = (_WORDS[int(draw() * len(_WORDS))] for _ in range((shape.prompt_tokens + 1) // 2))
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": " ".join(words)}],
            "max_tokens": shape.tokens,
            "ignore_eos": True,  # Where the engine knows it, all answers are of one length.
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _timed(self, body: dict[str, object], node: str) -> TimedChat:
        chat = TimedChat(self._clock.monotonic())
        headers = {_ONLY_NODE: node} if node else {}
        try:
            with (
                self._connect() as client,
                client.post_stream(
                    "v1", "chat", "completions", body=body, headers=headers, quiet_s=_QUIET_S
                ) as (_, chunks),
            ):
                self._read(chat, chunks)
        except RemudaError as error:
            chat.error = error
        chat.ended_s = self._clock.monotonic()
        return chat

    def _read(self, chat: TimedChat, chunks: Iterator[bytes]) -> None:
        parser = SseParser()
        for chunk in chunks:
            if self._stopped.is_set():
                raise PeerFailed("stopped")
            for event in parser.feed(chunk):
                if event.data == "[DONE]":
                    return
                self._note(chat, json.loads(event.data))
        raise PeerFailed("the answer ended before its end")

    def _note(self, chat: TimedChat, event: dict[str, object]) -> None:
        if isinstance(error := event.get("error"), dict):
            raise PeerFailed(str(error.get("message", "the answer was cut off")))
        if chat.first_s is None and event.get("choices"):
            chat.first_s = self._clock.monotonic()
        if isinstance(usage := event.get("usage"), dict):
            chat.prompt_tokens = int(usage.get("prompt_tokens", 0))
            chat.completion_tokens = int(usage.get("completion_tokens", 0))


def measured(node: str, streams: int, rounds: Sequence[Round], prompt_tokens_per_s: float) -> MeasuredSpeed:
    """What the rounds came to. Chats that failed count as failed, and for nothing else."""
    chats = [chat for one in rounds for chat in one.chats]
    good = [chat for chat in chats if chat.error is None]
    seconds = sum(one.seconds for one in rounds)
    firsts = sorted((chat.first_s - chat.began_s) * 1000 for chat in good if chat.first_s is not None)
    completed = sum(chat.completion_tokens for chat in good)
    return MeasuredSpeed(
        node=node,
        streams=streams,
        requests=len(chats),
        failed=len(chats) - len(good),
        prompt_tokens=round(sum(chat.prompt_tokens for chat in good) / max(len(good), 1)),
        completion_tokens=round(completed / max(len(good), 1)),
        first_token_ms=_at(firsts, 0.5),
        first_token_p95_ms=_at(firsts, 0.95),
        tokens_per_s=completed / seconds if seconds > 0 else 0.0,
        prompt_tokens_per_s=prompt_tokens_per_s,
    )


def prompt_speed(rounds: Sequence[Round]) -> float:
    """Tokens of a prompt per second until the first token of its answer: the median of chats by themselves.
    The way there and back is part of it, so it is more than this on long prompts, never less."""
    speeds = [
        chat.prompt_tokens / (chat.first_s - chat.began_s)
        for one in rounds
        for chat in one.chats
        if chat.error is None and chat.first_s is not None and chat.first_s > chat.began_s
    ]
    return _at(sorted(speeds), 0.5)


def _at(ascending: Sequence[float], share: float) -> float:
    """The least value that so large a share of all do not exceed; 0 of nothing."""
    return ascending[math.ceil(share * len(ascending)) - 1] if ascending else 0.0


def speeds_on(
    load: ChatLoad,
    node: str,
    streams: Sequence[int],
    shape: ChatShape,
    rounds: int,
    say: Callable[[str], None],
) -> Iterator[MeasuredSpeed]:
    """For each number of streams. `say` is called with what is being measured."""
    reading = list[Round]()
    for number in range(rounds):
        say(f"prompts on {node}, {number + 1} of {rounds}")
        reading.append(load.round(ChatShape(shape.prompt_tokens, 1), 1, node))
    failures = [error for one in reading if (error := one.chats[0].error) is not None]
    if len(failures) == len(reading):  # Nothing else would be measured, either.
        raise failures[0]
    for count in streams:
        done = list[Round]()
        for number in range(rounds):
            say(f"{count} at once on {node}, {number + 1} of {rounds}")
            done.append(load.round(shape, count, node))
        yield measured(node, count, done, prompt_speed(reading))
