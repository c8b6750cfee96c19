"""A gateway for inference on a real socket, with replicas that do what a test tells them."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import cast

import anyio
from pydantic import SecretStr

from remuda.accounts.ended_sessions import EndedSessions
from remuda.accounts.keys import ApiKey, KeyRing
from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.errors import NoCapacity
from remuda.core.ids import NodeId, ReplicaKey
from remuda.gateway.client_apis import inference_routes, requests_shut_out
from remuda.gateway.inference.api import InferenceRoutes
from remuda.gateway.inference.link_fetch import LinkFetcher
from remuda.gateway.inference.request_records import InferenceFigures
from remuda.gateway.metrics import Metrics
from remuda.gateway.requests_under_way import Running
from remuda.gateway.responses.keeper import ResponseKeeper
from remuda.gateway.server import serve
from remuda.gateway.services import Access, Inference, Metering, Services
from remuda.gateway.sessions import Sessions
from remuda.gateway.shut_out import RequestsShutOut
from remuda.inference.answers import (
    NOTHING,
    AnswerFormat,
    AnswerSink,
    ByteSink,
    FinishReason,
    TextSink,
    Usage,
)
from remuda.inference.failures import UpstreamFailed
from remuda.inference.model import InferenceCall, ReplicaEndpoint, RequestKind, Upstream
from remuda.models.config import ModelConfig
from remuda.router.cold_path import ModelRefresh, nothing_new
from remuda.router.decisions import DecisionLog
from remuda.router.dispatch import RequestDispatcher, WaitLimits
from remuda.router.live_table import Tables
from remuda.router.loading import Meanwhile
from remuda.router.table import Route, RoutedModel, Table
from remuda.router.usage import RequestLedger
from remuda.scheduler.ranking import NO_WISHES, NodeWishes
from remuda.upstreams.http.openai_decoder import (
    AnswerPart,
    StreamDecoder,
    embeddings_in,
    vector_of,
    whole_text,
)
from tests.support.metering import metering_in_memory

Script = Callable[[InferenceCall, ByteSink], Awaitable[None]]  # Answers in OpenAI's bytes.
TypedScript = Callable[[InferenceCall, AnswerSink], Awaitable[None]]  # Answers what is not relayed.
JSON = b"application/json"
SSE = b"text/event-stream"


async def hello(call: InferenceCall, sink: ByteSink) -> None:
    """Says hello, in the way that was asked for."""
    call.tally.prompt_tokens, call.tally.completion_tokens = 3, 2
    if not call.stream:
        await sink.begin(200, JSON)
        await sink.write(whole("Hello there"))
        return
    await sink.begin(200, SSE)
    for word in ("Hello", " there"):
        await sink.write(chunk(word))
    await sink.write(b"data: [DONE]\n\n")


class Endless:
    """A replica that never comes to an end by itself, and knows when it was stopped."""

    def __init__(self) -> None:
        self.began = self.stopped = 0

    async def __call__(self, call: InferenceCall, sink: ByteSink) -> None:
        self.began += 1
        try:
            if call.stream:
                await sink.begin(200, SSE)
                await sink.write(chunk("one"))
            await anyio.sleep_forever()
        finally:
            self.stopped += 1


def whole(text: str) -> bytes:
    return (
        b'{"id":"c-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
        b'{"role":"assistant","content":"%s"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}' % text.encode()
    )


def chunk(text: str) -> bytes:
    return (
        b'data: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":"m","choices":'
        b'[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n' % text.encode()
    )


@dataclass
class ScriptedUpstreams:
    """Every replica does what the script of its address says; all of them what `typed` says of requests whose
    answers are not relayed."""

    scripts: dict[str, Script] = field(default_factory=dict)
    script: Script = hello
    typed: TypedScript | None = None
    relays: bool = True  # As replicas do that speak HTTP; else all answers are typed.

    def at(self, endpoint: ReplicaEndpoint) -> Upstream:
        return _Scripted(self.scripts.get(endpoint.address, self.script), self.typed, self.relays)


@dataclass(frozen=True)
class _Scripted:
    script: Script
    typed: TypedScript | None
    relays: bool

    async def serve(self, call: InferenceCall, sink: AnswerSink) -> None:
        relay = sink.relay(AnswerFormat.OPENAI) if self.relays else None
        if relay is not None:
            await self.script(call, relay)
            return
        if self.typed is not None:
            await self.typed(call, sink)
            return
        decoding = _Decoding(call, sink)
        await self.script(call, decoding)
        await decoding.end()


class _Decoding:
    """Decodes what a script writes, for clients of another API."""

    def __init__(self, call: InferenceCall, sink: AnswerSink) -> None:
        self._call = call
        self._sink = sink
        self._stream: StreamDecoder | None = None
        self._body = b""
        self._texts: TextSink | None = None
        self._usage: Usage | None = None
        self._finished = False

    async def begin(self, status: int, content_type: bytes) -> None:
        self._stream = StreamDecoder() if content_type == SSE else None

    async def write(self, data: bytes) -> None:
        if self._stream is None:
            self._body += data
        else:
            await self._pass_on(self._stream.feed(data))

    async def end(self) -> None:
        if self._call.kind is RequestKind.EMBEDDING:
            embeddings, usage = embeddings_in(self._body)
            await self._sink.vectors([vector_of(one) for one in embeddings], usage)
            return
        if self._stream is None:
            parts, self._usage = whole_text(self._body)
            await self._pass_on(parts)
        else:
            self._usage = self._stream.usage
        texts, tally = self._text_sink(), self._call.tally
        if not self._finished:
            await texts.finish(0, FinishReason.STOP)
        await texts.end(self._usage or Usage(tally.prompt_tokens, tally.completion_tokens))

    async def _pass_on(self, parts: Sequence[AnswerPart]) -> None:
        for index, delta, reason, _ in parts:
            if reason is not None:
                self._finished = True
                await self._text_sink().finish(index, reason, delta)
            elif delta is not NOTHING:
                await self._text_sink().write(index, delta)

    def _text_sink(self) -> TextSink:
        self._texts = self._texts or self._sink.texts(1)
        return self._texts


Bring = Callable[[str, float | None, Meanwhile], Awaitable[None]]


@dataclass
class ScriptedLoading:
    """Loads nothing, unless the test says how."""

    bringing: Bring | None = None
    doubted: list[Route] = field(default_factory=list)

    async def bring(
        self, model: str, wait_s: float | None, meanwhile: Meanwhile, wishes: NodeWishes = NO_WISHES
    ) -> None:
        if self.bringing is None:
            raise NoCapacity(f"no node can take {model}", hint="gpu-1: no free memory")
        await self.bringing(model, wait_s, meanwhile)

    def suspect(self, route: Route, why: UpstreamFailed) -> None:
        self.doubted.append(route)

    async def gone(self, route: Route) -> bool:
        return False

    async def removed(self, route: Route) -> bool:
        return False


class KeysInMemory:
    """Implements accounts.keys.KeyStore."""

    def __init__(self) -> None:
        self._held: dict[str, ApiKey] = {}

    async def keys(self) -> tuple[ApiKey, ...]:
        return tuple(self._held.values())

    async def add_key(self, key: ApiKey) -> None:
        self._held[key.id] = key

    async def edit_key(self, key_id: str, change: Callable[[ApiKey], ApiKey]) -> ApiKey:
        self._held[key_id] = change(self._held[key_id])
        return self._held[key_id]

    async def keys_used(self, key_ids: Collection[str]) -> None:
        pass

    async def revoke_key(self, key_id: str) -> ApiKey:
        return self._held.pop(key_id)


class EndedSessionsInMemory:
    """Implements accounts.ended_sessions.EndedSessionStore."""

    def __init__(self) -> None:
        self._held: dict[str, datetime] = {}

    async def ended_sessions(self) -> dict[str, datetime]:
        return dict(self._held)

    async def end_session(self, session_id: str, until: datetime) -> None:
        self._held[session_id] = until


class ForwardClock(SystemClock):
    """The system's clock, which can be put forward."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead_s

    def forward(self, seconds: float) -> None:
        self._ahead_s += seconds


def route_to(model: str, index: int = 0, node: str = "gpu-1", parallel: int = 0) -> Route:
    key = ReplicaKey(model, index)
    return Route(key, NodeId(f"id-of-{node}"), node, ReplicaEndpoint(f"{node}:{index}"), parallel=parallel)


def table(*entries: RoutedModel) -> Table:
    return Table(MappingProxyType({entry.config.id: entry for entry in entries}))


def model(name: str, *routes: Route, listed: bool = True, alias: str = "") -> RoutedModel:
    return RoutedModel(ModelConfig(name=name, alias=alias), routes, listed, created=1)


@dataclass
class Gateway:
    """The gateway with all that it stands on."""

    tables: Tables
    ledger: RequestLedger
    upstreams: ScriptedUpstreams
    loading: ScriptedLoading
    keyring: KeyRing
    metering: Metering
    metrics: Metrics
    running: Running
    clock: ForwardClock
    door: InferenceRoutes
    shut_out: RequestsShutOut
    sessions: Sessions
    models: "ScriptedModels"
    decisions: DecisionLog
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


async def _nothing_here(scope: object, receive: object, send: object) -> None:
    raise AssertionError("a request for inference took the general way")


def gateway(
    *,
    keys_required: bool = False,
    waits: WaitLimits | None = None,
    grace_s: float = 30.0,
    expose_node: bool = False,
    body_bytes_max: int = 64 << 20,
    refresh_models: ModelRefresh = nothing_new,
    links: LinkFetcher | None = None,
    responses: ResponseKeeper | None = None,
) -> Gateway:
    """Not yet on any socket. It has the model `m` with one replica, on gpu-1."""
    clock, entropy = ForwardClock(), SystemEntropy()
    tables, ledger, upstreams, loading = Tables(), RequestLedger(), ScriptedUpstreams(), ScriptedLoading()
    tables.replace(table(model("m", route_to("m"))))
    metrics, keyring, running = Metrics("test"), KeyRing(KeysInMemory(), clock, entropy), Running(grace_s)
    figures = InferenceFigures(metrics.registry, tables, ledger)
    limits = waits or WaitLimits()
    dispatcher = RequestDispatcher(tables, ledger, upstreams, loading, clock, limits, figures=figures)
    inference = Inference(
        dispatcher,
        tables,
        figures,
        running,
        body_bytes_max=body_bytes_max,
        expose_node=expose_node,
        refresh_models=refresh_models,
        responses=responses,
        links=links or LinkFetcher(),
    )
    access = Access(SecretStr("token"), keys_required, frozenset({"127.0.0.1", "localhost"}))
    ended = EndedSessions(EndedSessionsInMemory(), keyring.sessions_ended)
    console, models = _Console(Sessions("", keyring, ended, clock, entropy)), ScriptedModels()
    metering = metering_in_memory(keyring, clock)
    few = _Few(access, keyring, metering, entropy, console, _Serving(models))
    shut_out = requests_shut_out(cast(Services, few), inference)
    door = inference_routes(_nothing_here, cast(Services, few), inference, clock)
    return Gateway(
        tables,
        ledger,
        upstreams,
        loading,
        keyring,
        metering,
        metrics,
        running,
        clock,
        door,
        shut_out,
        console.sessions,
        models,
        inference.decisions,
    )


@dataclass(frozen=True)
class _Console:
    sessions: Sessions


@dataclass
class ScriptedModels:
    """Notes who had what unloaded."""

    unloaded: list[tuple[str, str]] = field(default_factory=list)

    async def unload(self, name: str, by: str) -> None:
        self.unloaded.append((name, by))


@dataclass(frozen=True)
class _Serving:
    models: ScriptedModels


@dataclass(frozen=True)
class _Few:
    """All that the door looks at."""

    access: Access
    keyring: KeyRing
    metering: Metering
    entropy: SystemEntropy
    console: _Console
    serving: _Serving


@asynccontextmanager
async def serving(served: Gateway) -> AsyncIterator[Gateway]:
    """The gateway on a free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with anyio.create_task_group() as tasks:
            await tasks.start(served.metering.limits.run)
            await tasks.start(served.shut_out.run)
            await tasks.start(serve, served.door, listener)
            yield replace(served, port=listener.getsockname()[1])
            tasks.cancel_scope.cancel()
