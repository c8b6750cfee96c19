"""Builds a frontend: from settings to a running API, and back down in reverse order."""

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Final

import anyio
import structlog
from pydantic import SecretStr
from starlette.types import ASGIApp

from remuda import __version__
from remuda.accounts.keys import KeyScope
from remuda.assembly import addresses
from remuda.assembly.accounts import open_accounts
from remuda.assembly.bus import BusPlan, BusPlanner, BusStopSender, command_prober
from remuda.assembly.console import ConsoleParts, open_console
from remuda.assembly.model_sources import open_model_galleries
from remuda.assembly.operations import FrontendParts, open_ops
from remuda.assembly.running import Runner, background
from remuda.assembly.serving import ServingDeps, ServingRig
from remuda.assembly.settings import FrontendSettings
from remuda.assembly.settings.shared import registration_token
from remuda.assembly.sources import hub_access, registries_of
from remuda.assembly.starter import StarterModel
from remuda.bus.client import Bus
from remuda.bus.messages import Connected
from remuda.core import limits
from remuda.core.clock import Clock, SystemClock
from remuda.core.entropy import Entropy, SystemEntropy
from remuda.core.errors import Conflict, Misconfigured, RemudaError
from remuda.core.ids import FrontendId, MachineId
from remuda.fleet.admission import AdmissionPolicy
from remuda.fleet.health import Thresholds
from remuda.fleet.heartbeats import HeartbeatIntake, Listener
from remuda.fleet.identity import NodeTokens
from remuda.fleet.ports import FleetStore
from remuda.fleet.registry import Registry
from remuda.gateway.app import application
from remuda.gateway.client_apis import requests_shut_out
from remuda.gateway.dialer import Dialer
from remuda.gateway.history.keeper import HistoryKeeper, RequestUse
from remuda.gateway.metrics import Metrics
from remuda.gateway.node_logs import NodeLogs
from remuda.gateway.server import TrustedProxies, serve
from remuda.gateway.services import Access, Console, FrontendTrouble, Inference, Ops, Services, Serving
from remuda.host import joining
from remuda.host.folder import DataFolder, stable_id, write_json
from remuda.host.joining import own_wheel, own_wheel_name
from remuda.host.ports import listen
from remuda.hubs.hubs import Hubs, open_hubs
from remuda.model_installs.library import ModelLibrary
from remuda.oci.transport import RetryPolicy
from remuda.ops.broadcast import ChangeSignal
from remuda.staging.push import NodePush, open_pusher
from remuda.store.accounts import SqlSecretStore
from remuda.store.database import Database, open_database
from remuda.store.fleet import SqlFleetStore
from remuda.store.ops import SqlOpStore
from remuda.store.replicas import SqlModelStore
from remuda.wire.admin import FrontendPart, JoinLines

log = structlog.get_logger()

# Operations try again themselves, and say why: also how long a server asks to wait.
_SOON_TOLD: Final = RetryPolicy(attempts_max=3, retry_after_max=timedelta(seconds=5))


@dataclass(frozen=True, slots=True)
class RunningFrontend:
    """What the one who started it needs to know."""

    url: str  # For people and other machines.
    local_url: str  # For processes on this machine: plain HTTP, also where `url` is HTTPS.
    open_to_network: bool
    token: SecretStr | None
    first_admin_key: str  # To be shown once; empty unless it was made just now.
    registry: Registry
    why_unready: str  # As it was when it started; empty when store and bus could be used.
    starter: StarterModel
    own_worker_ended: Callable[[str], Awaitable[None]]  # With the reason; what ran there is not routed to.


def admission_policy(
    settings: FrontendSettings,
    *,
    otherwise: bool,
    own: frozenset[MachineId] = frozenset(),
    own_secrets: frozenset[str] = frozenset(),
) -> AdmissionPolicy:
    """`otherwise`: whether workers are let in by themselves where the settings leave that open."""
    chosen = settings.auto_approve
    return AdmissionPolicy(otherwise if chosen is None else chosen, own, own_secrets)


@asynccontextmanager
async def running_frontend(
    settings: FrontendSettings,
    policy: AdmissionPolicy,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    *,
    probes_commands: bool = True,
    starts_worker: bool = False,
    origins: Mapping[str, str] | None = None,
) -> AsyncIterator[RunningFrontend]:
    """A frontend that answers when the block begins. Misconfigured before anything has started.
    `probes_commands`: look for nodes whose workers are not on the bus. `starts_worker`: the caller
    is about to start the worker of `policy`'s own secret, which does not run yet. `origins`: where each
    setting comes from, in words; those that are not there are defaults."""
    async with AsyncExitStack() as stack:
        build = _Build(stack, settings, policy, clock or SystemClock(), entropy or SystemEntropy())
        build.probes_commands = probes_commands
        build.starts_worker = starts_worker
        build.origins = origins or {}
        listener = build.claim()
        database = await build.open_store()
        services = await build.assemble(database)
        await services.keyring.refresh()
        first_key = await _first_admin_key(services) if services.access.keys_required else ""
        app = application(services, build.clock)
        shut_out = requests_shut_out(services, services.inference)
        await stack.enter_async_context(background(shut_out.run))
        local_url = await build.serve(app, listener)
        # Before the server waits for requests to end.
        stack.callback(services.ops.feed.close)
        stack.callback(services.console.events.close)
        stack.callback(services.logs.close)
        stack.push_async_callback(services.inference.running.close)
        port = listener.getsockname()[1]
        build.announce(local_url, services.keyring.local_secret, port)
        url = addresses.public_url(settings, port)
        log.info("frontend_ready", url=url, database=database.name, version=__version__)
        yield RunningFrontend(
            url,
            local_url,
            services.access.keys_required,
            services.access.registration_token,
            first_key,
            services.registry,
            "; ".join(one.for_admins for one in await services.troubles()),
            build.starter,
            partial(_own_worker_ended, services),
        )


class _Build:
    """The steps, in order. What a step opens is closed by the stack, last opened first."""

    def __init__(
        self,
        stack: AsyncExitStack,
        settings: FrontendSettings,
        policy: AdmissionPolicy,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._stack = stack
        self._settings = settings
        self._policy = replace(policy, address_only=not settings.refuse_address_only)
        self.clock = clock
        self.entropy = entropy
        self.probes_commands = True
        self.starts_worker = False
        self.origins: Mapping[str, str] = {}
        self._host = addresses.bind_host(settings)
        self._folder = DataFolder(settings.data_dir)

    def claim(self) -> socket.socket:
        """The folder and the port: what two frontends cannot share is found out before anything starts.
        So are files that cannot be used."""
        addresses.check_tls(self._settings)
        addresses.check_origins(self._settings)
        self._folder.prepare()
        self._stack.enter_context(self._folder.held_by("frontend"))
        listener = self._stack.enter_context(listen(self._host, self._settings.port))
        self._port: int = listener.getsockname()[1]
        return listener

    async def open_store(self) -> Database:
        given = self._settings.database_url
        url = f"sqlite:///{self._folder.database.absolute()}" if given is None else given.get_secret_value()
        database = await open_database(url, clock=self.clock)
        self._stack.push_async_callback(database.close)
        return database

    async def assemble(self, database: Database) -> Services:
        settings, secrets, fleet = self._settings, SqlSecretStore(database), SqlFleetStore(database)
        frontend = FrontendId(stable_id(self._folder.root / "frontend-id", self.entropy))
        alone = partial(_insist_on_being_alone, fleet, frontend) if settings.nats_url is None else _in_company
        await alone()
        token = await self._token(secrets)
        tokens = await self._node_tokens(secrets, token)
        plan, bus, ticks = await self._open_bus(frontend, secrets, fleet)
        thresholds = Thresholds(settings.node_unhealthy_after, settings.node_offline_after)
        signal = ChangeSignal(bus, frontend)
        intake = HeartbeatIntake(fleet, signal)
        metrics = Metrics(__version__)
        accounts = await self._stack.enter_async_context(open_accounts(database, self.clock, self.entropy))
        keyring = accounts.keyring
        ear = Listener(frontend, fleet, partial(_hear_bus, bus), thresholds, metrics.fleet_seen)
        registry = Registry(
            fleet, intake, plan.issuer, BusStopSender(bus), self._policy, thresholds, self.entropy, tokens
        )
        prober = command_prober(frontend, fleet, bus, plan, self.clock, thresholds)
        probing = [prober.run] if self.probes_commands else []
        callers = [*_dials(frontend, fleet, thresholds, plan), *probing]
        await self._stack.enter_async_context(background(intake.run, ear.run, *callers))
        parts = self._parts(database, (bus, ticks), signal, frontend, registry, metrics)
        own, url = self._policy.own_machines, addresses.public_url(settings, self._port)
        ground = ServingDeps(parts, self.models, fleet, registry, tokens, own, metrics.registry, url)
        ops, serving, inference = await self._open_work(ground)
        use = RequestUse(inference.figures, inference.running)
        history = HistoryKeeper(frontend, lambda: ear.seen, use, bus, self.clock)
        return Services(
            registry=registry,
            ops=ops,
            serving=serving,
            inference=inference,
            logs=NodeLogs(lambda node: SecretStr(tokens.of(node).http)),
            keyring=keyring,
            metering=accounts.metering,
            console=await self._console(
                ConsoleParts(parts, registry, ops, serving, keyring, lambda: inference.tables.now, history)
            ),
            access=self._access(token),
            metrics=metrics,
            version=__version__,
            entropy=self.entropy,
            tokens=tokens,
            bus_url_for=plan.url_for,
            bus_connected=lambda: isinstance(bus.state, Connected),
            uncommandable=prober.problem_of,
            troubles=partial(_troubles, database, bus, metrics, alone, ear),
            wheel=cache(own_wheel),
            join_lines=partial(_join_lines, settings, self._port, token),
            join_script=joining.script,
        )

    def _parts(
        self,
        database: Database,
        buses: tuple[Bus, Bus],
        signal: ChangeSignal,
        frontend: FrontendId,
        registry: Registry,
        metrics: Metrics,
    ) -> FrontendParts:
        return FrontendParts(
            self._settings,
            self._folder,
            database,
            *buses,
            frontend,
            signal,
            registry.standings,
            self.clock,
            self.entropy,
            metrics.ops,
        )

    def _hubs(self) -> AbstractAsyncContextManager[Hubs]:
        return open_hubs(
            self.clock,
            self.entropy,
            hub_access(self._settings, self._folder, os.environ),
            registries=registries_of(self._settings),
            retry=_SOON_TOLD,
        )

    async def _forget_own_worker(self, registry: Registry) -> None:
        """Before any reader finds it there: what it ran when an earlier process was killed is gone."""
        if self.starts_worker:
            why = "remuda up was just started; its worker has not registered yet"
            await registry.own_worker_starts(why)

    async def _open_work(self, ground: ServingDeps) -> tuple[Ops, Serving, Inference]:
        """Operations first: they end last, for serving still needs them when it ends."""
        await self._forget_own_worker(ground.registry)
        hubs = await self._stack.enter_async_context(self._hubs())
        galleries = await self._stack.enter_async_context(
            open_model_galleries(self._settings, self._folder, self.clock)
        )
        library = ModelLibrary(self._folder.model_store, self.models)
        silence = self._settings.file_transfer_timeout
        patience_s = None if silence is None else silence.total_seconds()
        pusher = await self._stack.enter_async_context(open_pusher(self.entropy, patience_s))
        rig = ServingRig(ground, hubs, library, galleries, NodePush(pusher, ground.tokens))
        ops = await self._stack.enter_async_context(open_ops(ground.parts, rig.model_work, rig.file_work))
        serving, inference = await self._stack.enter_async_context(rig.at_work())
        database = ground.parts.database
        self.starter = StarterModel(
            SqlSecretStore(database), SqlOpStore(database), SqlModelStore(database), serving.installs
        )
        return ops, serving, inference

    async def _console(self, parts: ConsoleParts) -> Console:
        return await self._stack.enter_async_context(open_console(parts, self.origins))

    @property
    def models(self) -> Path:
        return self._settings.models_path or self._folder.models

    async def serve(self, app: ASGIApp, listener: socket.socket) -> str:
        """Serve the API; answers the address for processes on this machine."""
        cert, key = self._settings.tls_cert, self._settings.tls_key
        await self._stack.enter_async_context(
            background(partial(serve, app, listener, tls_cert=cert, tls_key=key))
        )
        if cert is None and addresses.loopback_reaches(self._host):
            return addresses.url("http", "127.0.0.1", listener.getsockname()[1])
        if cert is None:
            return addresses.url("http", self._host, listener.getsockname()[1])
        # A certificate names the public host, never 127.0.0.1: local processes get a door of their own.
        door = self._stack.enter_context(listen("127.0.0.1", 0))
        await self._stack.enter_async_context(background(partial(serve, app, door)))
        return addresses.url("http", "127.0.0.1", door.getsockname()[1])

    def announce(self, local_url: str, api_key: str, port: int) -> None:
        """Tell commands on this machine where we are and how to get in."""
        where = {
            "url": local_url,
            "api_key": api_key,
            "pid": os.getpid(),
            "port": port,
            "models": str(self.models),
            "starts_worker": self.starts_worker,
        }
        write_json(self._folder.endpoint, where)
        self._stack.callback(self._folder.endpoint.unlink, missing_ok=True)

    async def _token(self, secrets: SqlSecretStore) -> SecretStr | None:
        if self._settings.insecure_no_token:
            log.warning("registration_is_open", why="--insecure-no-token: anyone who can connect may join")
            return None
        given = registration_token(self._settings)
        return given or SecretStr(await secrets.secret("registration_token", self.entropy.token))

    async def _node_tokens(self, secrets: SqlSecretStore, shared: SecretStr | None) -> NodeTokens:
        """The key from which nodes' own tokens are derived is the cluster's: all frontends have the same."""
        key = await secrets.secret("node_token_key", self.entropy.token)
        return NodeTokens(key, "" if shared is None else shared.get_secret_value())

    def _access(self, token: SecretStr | None) -> Access:
        settings = self._settings
        return Access(
            token,
            not addresses.loopback(self._host),
            addresses.own_names(self._host, settings),
            TrustedProxies.of(settings.trusted_proxies),
            address_only=self._policy.address_only,
            origins=frozenset(settings.cors_origins),
        )

    async def _open_bus(
        self, frontend: FrontendId, secrets: SqlSecretStore, fleet: SqlFleetStore
    ) -> tuple[BusPlan, Bus, Bus]:
        planner = BusPlanner(self._settings, frontend, self.clock, self.entropy)
        plan = await planner.plan(self._host, self._folder, secrets)
        return plan, *await self._start_bus(plan, fleet)

    async def _start_bus(self, plan: BusPlan, fleet: SqlFleetStore) -> tuple[Bus, Bus]:
        """One connection for everything, and one for floods that nothing else may wait behind."""
        if plan.server is not None:
            await self._stack.enter_async_context(background(plan.server.run))
            await plan.issuer.revoke(await fleet.revoked())
        bus, ticks = plan.open(), plan.open()
        await self._stack.enter_async_context(background(bus.run, ticks.run))
        with anyio.move_on_after(limits.BUS_AT_START_S):
            await bus.wait_connected()  # Later is no error: it goes on trying, and /readyz says so.
        return bus, ticks


def _dials(
    frontend: FrontendId, fleet: FleetStore, thresholds: Thresholds, plan: BusPlan
) -> Sequence[Runner]:
    """Who calls the nodes, and hears from the bus when that is urgent."""
    dialer = Dialer(frontend, fleet, thresholds, plan.issuer.public_key)
    if plan.disconnects is None:
        return [dialer.run]
    return [dialer.run, partial(plan.disconnects.run, dialer.left_bus)]


def _join_lines(settings: FrontendSettings, port: int, token: SecretStr | None) -> JoinLines:
    url, secret = addresses.public_url(settings, port), token.get_secret_value() if token else ""
    return JoinLines(
        url=url,
        line=joining.join_line(url, secret),
        uvx_line=joining.uvx_line(url, secret, own_wheel_name()),
        this_machine_only=addresses.loopback(addresses.bind_host(settings)),
    )


async def _first_admin_key(services: Services) -> str:
    """Off loopback there must be a key; where there is none, one of the frontends that start makes it."""
    if any(key.scope is KeyScope.ADMIN for key in services.keyring.listed()):
        return ""
    try:
        secret, _ = await services.keyring.create("first-admin", KeyScope.ADMIN)
    except Conflict:  # Another frontend was quicker, and shows the secret.
        await services.keyring.refresh()
        return ""
    return secret


async def _insist_on_being_alone(fleet: FleetStore, frontend: FrontendId) -> None:
    """A frontend with a bus of its own cannot reach the workers of another one's bus, nor the other its."""
    if await fleet.frontends() - {frontend}:
        raise Misconfigured(
            "another frontend uses this database: both must use the same external NATS server",
            hint="start one and give it to every frontend with --nats-url or REMUDA_NATS_URL; "
            f"one that has just ended counts for {limits.LIVENESS_GAP_MAX_S:.0f} s more",
        )


async def _in_company() -> None:
    """On a bus that all frontends share there may be any number of them."""


async def _own_worker_ended(services: Services, why: str) -> None:
    await services.registry.own_worker_ended(why)
    await services.serving.routed.fleet_changed()


async def _hear_bus(bus: Bus) -> None:
    await bus.round_trip(timedelta(seconds=limits.LIVENESS_ROUND_TRIP_S))


async def _troubles(
    database: Database, bus: Bus, metrics: Metrics, alone: Callable[[], Awaitable[None]], ear: Listener
) -> list[FrontendTrouble]:
    store = await _trouble(database.ping) or ear.store_trouble
    company = None if store else await _trouble(alone)  # Another frontend may have come after this one.
    wire = await _trouble(partial(_hear_bus, bus))
    metrics.links_seen(store=not store, bus=not wire)
    found: tuple[tuple[FrontendPart, RemudaError | None], ...] = (
        ("store", store),
        ("frontend", company),
        ("bus", wire),
    )
    return [
        FrontendTrouble(part, error.public, error.message if part == "bus" else error.public, error.code)
        for part, error in found
        if error is not None
    ]


async def _trouble(look: Callable[[], Awaitable[None]]) -> RemudaError | None:
    try:
        await look()
    except RemudaError as error:
        return error
    return None
