"""The services that routes use. Built once by `assembly`, read by every route."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Protocol, cast

from fastapi import Depends, Request
from pydantic import SecretStr

from remuda.accounts.keys import KeyRing
from remuda.accounts.limiter import KeyLimits
from remuda.accounts.usage import UsageCounter, UsageStore
from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.ids import FrontendId, NodeId, ReplicaKey
from remuda.fleet.identity import NodeTokens, plain_ip
from remuda.fleet.node_views import ObservedNodes
from remuda.fleet.registry import Registry
from remuda.gallery.model_galleries import ModelGalleries
from remuda.gateway.events.hub import EventHub
from remuda.gateway.history.keeper import HistoryKeeper
from remuda.gateway.inference.link_fetch import LinkFetcher
from remuda.gateway.inference.request_records import InferenceFigures
from remuda.gateway.metrics import Metrics
from remuda.gateway.node_logs import NodeLogs
from remuda.gateway.requests_under_way import Running
from remuda.gateway.responses.keeper import ResponseKeeper
from remuda.gateway.server import PEER, TrustedProxies
from remuda.gateway.sessions import FailureCount, Sessions
from remuda.gateway.static_files import StaticFiles
from remuda.model_installs.fit_preview import Prospects
from remuda.model_installs.service import ModelInstalls
from remuda.model_installs.uploads import ModelUploads
from remuda.model_installs.wanted_files import WantedFiles
from remuda.models.memory import MemoryUse
from remuda.ops.feed import Feed
from remuda.ops.service import Operations
from remuda.ops.upgrade_check import UpgradeCheck
from remuda.router.cold_path import ModelRefresh, nothing_new
from remuda.router.decisions import DecisionLog, Explanations
from remuda.router.dispatch import RequestDispatcher
from remuda.router.live_table import Tables
from remuda.router.loading import LoadStatus
from remuda.scheduler.benchmarks import BenchmarkStore
from remuda.scheduler.file_room import FileRoom
from remuda.scheduler.model import Replica
from remuda.scheduler.model_edits import ModelEdits
from remuda.scheduler.scheduling_edits import SchedulingEdits
from remuda.scheduler.service import Models
from remuda.servers.service import ServerService
from remuda.wire.admin import FrontendPart, JoinLines
from remuda.wire.broadcasts import StagingStatus
from remuda.wire.console import AttentionItem, SettingItem
from remuda.wire.model_file_urls import FRONTEND_PATH, FileGrant, granted


@dataclass(frozen=True, slots=True)
class Access:
    """Who may call. Nothing here is open by being empty: no token is a choice with a name of its own."""

    registration_token: SecretStr | None  # None only with --insecure-no-token.
    keys_required: bool  # False on loopback alone.
    allowed_hosts: frozenset[str]
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    address_only: bool = True  # Nodes that have nothing but the shared token are taken.
    origins: frozenset[str] = frozenset()  # Web pages that may call; see gateway.cross_origin.

    def source(self, request: Request) -> str:
        """The IP address that a request comes from; empty where it has none."""
        peer: tuple[str, int] | None = request.scope.get(PEER)
        return self.proxies.source(peer[0] if peer else "", request.headers.getlist("x-forwarded-for"))

    def secure(self, request: Request) -> bool:
        """Whether the client's connection is encrypted, as far as this frontend or a trusted proxy knows."""
        peer: tuple[str, int] | None = request.scope.get(PEER)
        if peer is not None and self.proxies.trusts(plain_ip(peer[0])):
            claimed = request.headers.get("x-forwarded-proto", "").rpartition(",")[2].strip()
            return (claimed or request.url.scheme) in ("https", "wss")
        return request.url.scheme in ("https", "wss")

    def claimed_source(self, request: Request) -> str:
        """The address from which a request may say where its sender is."""
        peer: tuple[str, int] | None = request.scope.get(PEER)
        return self.proxies.claimed(peer[0] if peer else "", request.headers.getlist("x-forwarded-for"))


@dataclass(frozen=True, slots=True)
class Ops:
    """What is done to the fleet's backends, and what could be."""

    operations: Operations
    feed: Feed
    upgrades: UpgradeCheck


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """The folder of models of this frontend, from which workers fetch by addresses signed with `key`."""

    folder: Path
    key: str = field(repr=False)
    clock: Clock

    def granted(self, raw_path: str, query: str) -> FileGrant:
        """Forbidden for an address that is not signed, or has expired."""
        return granted(FRONTEND_PATH, self.key, raw_path, query, self.clock.now().timestamp())


class RoutedFleet(Protocol):
    async def fleet_changed(self) -> None:
        """A node takes no more work, or does again: when this returns, requests here are routed by that."""
        ...


class ModelStorage(Protocol):
    """Object storage, as far as this frontend puts models there."""

    def trouble(self) -> str:
        """Why it does not have all that it should; empty: it has, or is just getting it."""
        ...

    def state_of(self, model: str) -> str:
        """What it lacks of a model's files, in words; empty: nothing."""
        ...

    def has(self, model: str) -> bool:
        """All files of a model, as this frontend saw when it looked last."""
        ...


@dataclass(frozen=True, slots=True)
class Serving:
    """Models: what is done to them, and what is known of their replicas."""

    models: Models
    edits: ModelEdits
    scheduling: SchedulingEdits
    installs: ModelInstalls
    uploads: ModelUploads
    galleries: ModelGalleries
    in_flight: Callable[[ReplicaKey], int]  # Over all frontends, by what they said last.
    unloads_at: Callable[[Replica], datetime | None]  # If it is not used until then; None: never.
    load_status: Callable[[str], Awaitable[LoadStatus | None]]
    routed: RoutedFleet
    out_of_reach: Callable[[], Mapping[NodeId, str]]  # Nodes that requests could not reach a moment ago.
    files: GivenFiles
    room: FileRoom
    prospects: Prospects
    benchmarks: BenchmarkStore
    servers: ServerService
    staging_elsewhere: Callable[[], Sequence[StagingStatus]]  # As heard from other frontends on the bus.
    measured: Callable[[Replica], MemoryUse | None] = lambda replica: None  # What its process takes.
    wanted: WantedFiles | None = None  # None: nothing is fetched for what configurations name.
    storage: ModelStorage | None = None  # None: no object storage is configured.
    node_views: ObservedNodes = field(default_factory=ObservedNodes)  # Reports, parsed once.


@dataclass(frozen=True, slots=True)
class Inference:
    """What answers inference requests."""

    dispatcher: RequestDispatcher
    tables: Tables
    figures: InferenceFigures
    running: Running
    body_bytes_max: int = limits.INFERENCE_BODY_BYTES_MAX
    expose_node: bool = False  # Say in headers which node answered.
    refresh_models: ModelRefresh = nothing_new
    responses: ResponseKeeper | None = None  # None: none are kept, and OpenAI's Responses API is not offered.
    links: LinkFetcher = field(default_factory=LinkFetcher)  # By default it refuses them.
    decisions: DecisionLog = field(default_factory=DecisionLog)
    explanations: Explanations | None = None  # Of all frontends; None: nothing is explained.


@dataclass(frozen=True, slots=True)
class FrontendTrouble:
    """One reason why a frontend cannot do its work. Only admins may know where its bus is."""

    part: FrontendPart
    public: str
    for_admins: str
    code: str


@dataclass(frozen=True, slots=True)
class Console:
    """What the web console needs beyond the API."""

    sessions: Sessions
    failures: FailureCount
    events: EventHub
    attention: Callable[[], Awaitable[Sequence[AttentionItem]]]  # What needs a person now.
    settings: Sequence[SettingItem]  # Of this frontend, as it was started.
    history: HistoryKeeper
    files: StaticFiles
    frontend: FrontendId


@dataclass(frozen=True, slots=True)
class Metering:
    """What keys take."""

    limits: KeyLimits
    usage: UsageCounter
    used: UsageStore


@dataclass(frozen=True, slots=True)
class Services:
    registry: Registry
    ops: Ops
    serving: Serving
    inference: Inference
    logs: NodeLogs
    keyring: KeyRing
    metering: Metering
    console: Console
    access: Access
    metrics: Metrics
    version: str
    entropy: Entropy
    tokens: NodeTokens
    bus_url_for: Callable[
        [str], str
    ]  # From the host by which a worker reached us to the bus address it gets.
    bus_connected: Callable[[], bool]  # This frontend's own connection.
    uncommandable: Callable[[NodeId], str]  # Why commands from here do not reach a node; empty: they do.
    troubles: Callable[[], Awaitable[Sequence[FrontendTrouble]]]  # Looks at store and bus.
    wheel: Callable[[], tuple[str, bytes]]  # This program, for machines that join.
    join_lines: Callable[[], JoinLines]
    join_script: Callable[[str, str], str]  # From the wheel's address and SHA-256 to the script that joins.


async def services(request: Request) -> Services:
    """Awaits nothing, and so stays on the loop: what is not async costs each request a thread."""
    return cast(Services, request.app.state.services)  # Starlette's state is untyped.


Svc = Annotated[Services, Depends(services)]
