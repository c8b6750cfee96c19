"""An OpenAI server of canned answers.

python -m bench.mock_upstreams.http_server PORT [MILLISECONDS BEFORE THE FIRST TOKEN OF A STREAM]
"""

import asyncio
import json
import re
import sys

import uvloop

from bench.mock_upstreams import HOLD, MODEL, TEXT, TOKENS_PER_S, WORDS

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_tokens": *(\d+)')
_STREAMED = re.compile(rb'"stream": *true')


def _head(kind: str, framing: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{framing}\r\n\r\n".encode()


def _whole() -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 420, "completion_tokens": 72, "total_tokens": 492}
    answer = {
        "id": "chatcmpl-5c1a6a1e",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
        "usage": usage,
    }
    body = json.dumps(answer, separators=(",", ":")).encode()
    return _head("application/json", f"Content-Length: {len(body)}") + body


def _event(word: str) -> bytes:
    choice = {"index": 0, "delta": {"content": word}, "logprobs": None, "finish_reason": None}
    part = {
        "id": "chatcmpl-5c1a6a1e",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
    }
    return _chunk(f"data: {json.dumps(part, separators=(',', ':'))}\n\n".encode())


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_WHOLE = _whole()
_STREAM = _head("text/event-stream", "Transfer-Encoding: chunked")
_EVENTS = tuple(_event(word) for word in WORDS)
_END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Replica(asyncio.Protocol):
    def __init__(self, prompt_s: float) -> None:
        self._prompt_s = prompt_s
        self._loop = asyncio.get_running_loop()
        self._arrived = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        while (body_at := self._arrived.find(b"\r\n\r\n") + 4) > 3:
            length = _LENGTH.search(self._arrived, 0, body_at)
            end = body_at + (int(length[1]) if length else 0)
            if len(self._arrived) < end:
                return
            body, self._arrived = self._arrived[body_at:end], self._arrived[end:]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        if not _STREAMED.search(body):
            self._transport.write(_WHOLE)
            return
        tokens = _TOKENS.search(body)
        self._left = int(tokens[1]) if tokens else 64
        self._due_s = self._loop.time() + self._prompt_s
        if self._prompt_s:
            self._timer = self._loop.call_at(self._due_s, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        self._transport.write(_STREAM)
        self._say()

    def _say(self) -> None:
        self._transport.write(_EVENTS[self._left % len(_EVENTS)])
        if self._left >= HOLD:
            return
        self._left -= 1
        self._due_s += 1 / TOKENS_PER_S
        self._timer = self._loop.call_at(self._due_s, self._say if self._left else self._end)

    def _end(self) -> None:
        self._transport.write(_END)


async def serve(port: int, prompt_ms: float = 0.0) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Replica(prompt_ms / 1e3), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(*map(int, sys.argv[1:])))
