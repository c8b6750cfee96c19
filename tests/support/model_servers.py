"""Servers that run without Remuda, written from their APIs: one that speaks OpenAI's and Anthropic's, as
cloud providers do, and an Ollama. What each was asked is remembered."""

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from aiohttp import web

PROMPT_TOKENS = 11
KEPT_TOKENS = 100  # Of a prompt that is to be kept.


@dataclass
class ModelServer:
    """`key`: what it demands. `status`: what every request for an answer gets instead of one."""

    names: tuple[str, ...] = ("small", "large")
    key: str = ""
    ollama: bool = False
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    silent: bool = False
    breaks: bool = False  # Each stream, after its first word.
    broken_status: int = 200  # Which the list of models has from then on.
    models_status: int = 200
    words: int = 5  # Of each answer, unless the request asks for fewer.
    gate: anyio.Event | None = None  # Answers wait for it.
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)  # As they came with each request of any kind.
    answering: int = 0
    prompt_tokens_told: int = PROMPT_TOKENS
    too_long: bool = False  # It says so of every prompt, as Anthropic does.
    tokenized: list[dict[str, Any]] = field(default_factory=list)
    prompt_tokens: int = 0  # Of all that was answered, as a bill would have it.
    completion_tokens: int = 0
    url: str = ""

    async def version(self, request: web.Request) -> web.Response:
        if not self.ollama:
            raise web.HTTPNotFound
        return web.json_response({"version": "0.12.3"})

    async def tags(self, request: web.Request) -> web.Response:
        self._admit(request)
        if not self.ollama:
            raise web.HTTPNotFound
        return web.json_response({"models": [{"name": name, "model": name} for name in self.names]})

    async def models(self, request: web.Request) -> web.Response:
        self._admit(request)
        if self.silent:
            await anyio.sleep_forever()
        if self.models_status != 200:
            return web.Response(status=self.models_status)
        if 300 <= self.status < 400:
            raise web.HTTPTemporaryRedirect(self.headers["Location"])
        if "anthropic-version" in request.headers:
            infos = [{"type": "model", "id": name, "display_name": name} for name in self.names]
            return web.json_response({"data": infos, "has_more": False})
        listed = [{"id": name, "object": "model"} for name in self.names]
        return web.json_response({"object": "list", "data": listed})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self._admit(request)
        body = json.loads(await request.read())
        self.asked.append(body)
        if self.status:
            error = {"error": {"message": "scripted", "type": "scripted"}}
            return web.json_response(error, status=self.status, headers=self.headers)
        if body["model"] not in self.names:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        self.answering += 1
        try:
            if self.gate is not None:
                await self.gate.wait()
            return await self._answered(request, body)
        finally:
            self.answering -= 1

    async def tokenize(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        kept = {name: body[name] for name in ("model", "content", "prompt") if name in body}
        self.tokenized.append(kept)
        return web.json_response({"tokens": [1, 2], "count": 2})

    async def message(self, request: web.Request) -> web.StreamResponse:
        """Anthropic's. It demands what that API demands."""
        assert request.headers["anthropic-version"] == "2023-06-01"
        if self.key and request.headers.get("x-api-key") != self.key:
            error = {
                "type": "error",
                "error": {"type": "authentication_error", "message": "invalid x-api-key"},
            }
            return web.json_response(error, status=401)
        body = json.loads(await request.read())
        self.asked.append(body)
        if self.too_long:
            words_of_it = "prompt is too long: 20011 tokens > 4096 maximum"
            refused = {"type": "error", "error": {"type": "invalid_request_error", "message": words_of_it}}
            return web.json_response(refused, status=400)
        words = [f"w{n} " for n in range(min(body["max_tokens"], self.words))]
        usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": len(words)}
        if b"cache_control" in json.dumps(body).encode():
            usage |= {"cache_creation_input_tokens": KEPT_TOKENS, "cache_read_input_tokens": 0}
        if not body.get("stream"):
            content = [{"type": "text", "text": "".join(words)}]
            shape = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
            ends = {"stop_reason": "end_turn", "stop_sequence": None}
            return web.json_response({**shape, "content": content, **ends, "usage": usage})
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        deltas = [{"type": "content_block_delta", "index": 0, "delta": _text(word)} for word in words]
        events: tuple[dict[str, Any], ...] = (
            {"type": "message_start", "message": {"content": [], "usage": {**usage, "output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
            *deltas,
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
            {"type": "message_stop"},
        )
        for event in events:
            await answer.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        return answer

    async def _answered(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or self.words
        words = [f"w{n} " for n in range(min(limit, self.words))]
        self.prompt_tokens += self.prompt_tokens_told
        self.completion_tokens += len(words)
        usage = {
            "prompt_tokens": self.prompt_tokens_told,
            "completion_tokens": len(words),
            "total_tokens": self.prompt_tokens_told + len(words),
        }
        if not body.get("stream"):
            message = {"role": "assistant", "content": "".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            shape = {"id": "x", "object": "chat.completion", "created": 1, "model": body["model"]}
            return web.json_response({**shape, "choices": [choice], "usage": usage})
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for word in words:
            await self._event(answer, body, {"content": word})
            if self.breaks:
                self.models_status = self.broken_status
                raise ConnectionAbortedError
        await self._event(answer, body, {}, finish="stop")
        if (body.get("stream_options") or {}).get("include_usage"):
            await self._event(answer, body, None, usage=usage)
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async def _event(
        self,
        answer: web.StreamResponse,
        body: dict[str, Any],
        delta: dict[str, str] | None,
        finish: str | None = None,
        usage: dict[str, int] | None = None,
    ) -> None:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        shape = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        event = {**shape, "choices": choices, **({"usage": usage} if usage else {})}
        await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _admit(self, request: web.Request) -> None:
        bearer = request.headers.get("Authorization", "")
        self.keys.append(bearer.removeprefix("Bearer "))
        if self.key and bearer != f"Bearer {self.key}":
            body = json.dumps({"error": {"message": "Incorrect API key", "code": "invalid_api_key"}})
            raise web.HTTPUnauthorized(text=body, content_type="application/json")


def _text(word: str) -> dict[str, str]:
    return {"type": "text_delta", "text": word}


@asynccontextmanager
async def model_server(
    script: ModelServer | None = None, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ModelServer]:
    """It listens on loopback while the block lasts."""
    script = script or ModelServer()
    app = web.Application()
    app.router.add_get("/api/version", script.version)
    app.router.add_get("/api/tags", script.tags)
    app.router.add_get("/v1/models", script.models)
    app.router.add_post("/tokenize", script.tokenize)
    app.router.add_post("/v1/messages", script.message)
    app.router.add_post("/v1/chat/completions", script.chat)
    # Where others have the same: Google's path, in which /v1 does not come.
    app.router.add_get("/v1beta/openai/models", script.models)
    app.router.add_post("/v1beta/openai/chat/completions", script.chat)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
    await site.start()
    bound = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    script.url = f"http://127.0.0.1:{bound}" if tls is None else f"https://localhost:{bound}"
    try:
        yield script
    finally:
        await runner.cleanup()
