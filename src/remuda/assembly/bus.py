"""Builds the connection to the bus from the settings: the bundled server or an external one, our own login,
and the credentials we issue."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import anyio
import structlog
from anyio.abc import TaskStatus
from pydantic import BaseModel, SecretStr, ValidationError

from remuda.accounts.keys import SecretStore
from remuda.assembly.settings import FrontendSettings
from remuda.bus.auth import (
    AuthSource,
    TlsFiles,
    UserJwt,
    UserPassword,
    account_user,
    anonymous,
    creds_file,
    fixed,
    mask_url,
    parse_servers,
)
from remuda.bus.client import BUS_BACKOFF, Bus
from remuda.bus.credentials import Account, ClusterKeys
from remuda.bus.messages import Connected, Incoming, NoResponders
from remuda.bus.server import NatsServer
from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import BusRefused, BusUnusable, Misconfigured, RemudaError
from remuda.core.ids import FrontendId, NodeId
from remuda.fleet.command_probe import CommandProber, ProbeReply
from remuda.fleet.health import Thresholds
from remuda.fleet.model import NodeType
from remuda.fleet.ports import BusCredentials, CredentialIssuer, FleetStore
from remuda.host.folder import DataFolder
from remuda.wire import subjects
from remuda.wire.backends import BackendList
from remuda.wire.codec import NOTHING, encode

log = structlog.get_logger()


class AccountIssuer:
    """Mints worker credentials with the account's seed; revokes where the server is ours."""

    def __init__(self, account: Account, ttl: timedelta, server: NatsServer | None) -> None:
        self._account = account
        self._ttl = ttl
        self._server = server

    def mint(self, node_type: NodeType, node_id: NodeId, now: datetime) -> BusCredentials | None:
        allowed = subjects.permissions(node_type.value, node_id)
        minted = self._account.mint_worker(
            node_type.value,
            node_id,
            subscribe=allowed.subscribe,
            publish=allowed.publish,
            now=now,
            ttl=self._ttl,
        )
        assert minted.expires_at is not None, "worker credentials always expire"
        return BusCredentials(minted.jwt, minted.seed.get_secret_value(), minted.expires_at)

    def public_key(self, node_id: NodeId) -> str | None:
        return self._account.worker_public_key(node_id)

    async def revoke(self, keys: dict[str, datetime]) -> None:
        if self._server is None:
            # Only the operator of that server can; the credentials run out by themselves.
            log.warning("bus_keys_not_revoked", keys=len(keys), expire_within_s=self._ttl.total_seconds())
            return
        try:
            await self._server.revoke(keys)
        except BusUnusable as error:
            log.warning("bus_keys_revoked_at_next_start", reason=error.message)


class NoIssuer:
    """On a bus without per-worker credentials."""

    def mint(self, node_type: NodeType, node_id: NodeId, now: datetime) -> BusCredentials | None:
        return None

    def public_key(self, node_id: NodeId) -> str | None:
        return None

    async def revoke(self, keys: dict[str, datetime]) -> None:
        return None


class BusStopSender:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def stop(self, node_id: NodeId) -> None:
        await self._bus.publish(subjects.node_stop(node_id), NOTHING)


class _Client(BaseModel):
    user: str = ""


class _Disconnect(BaseModel):
    client: _Client = _Client()


@dataclass(frozen=True, slots=True)
class Disconnects:
    """What the bundled server tells of connections that were closed."""

    open: Callable[[], Bus]
    account: str

    async def run(
        self, tell: Callable[[str], None], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """`tell` is called with the user of each connection that was closed. Never waits for the bus."""

        async def hear(message: Incoming) -> None:
            try:
                tell(_Disconnect.model_validate_json(message.payload).client.user)
            except ValidationError:
                log.debug("disconnect_not_understood")

        bus = self.open()
        async with anyio.create_task_group() as tasks:
            await tasks.start(bus.run)
            task_status.started()
            try:
                await bus.subscribe(f"$SYS.ACCOUNT.{self.account}.DISCONNECT", hear)
            except BusRefused as error:
                log.warning("disconnects_not_heard", reason=error.message)


@dataclass(frozen=True, slots=True)
class BusPlan:
    server: NatsServer | None  # None: it is an external one.
    open: Callable[[], Bus]  # Once the server, if ours, is up.
    issuer: CredentialIssuer
    url_for: Callable[[str], str]  # For a worker that reached us under this host.
    disconnects: Disconnects | None = None  # None: the server does not tell us.

    def described(self) -> str:
        """Which bus this is, for people on other machines."""
        return self.url_for("") if self.server is None else f"port {self.server.port} of its machine"


def command_prober(
    frontend: FrontendId, store: FleetStore, bus: Bus, plan: BusPlan, clock: Clock, thresholds: Thresholds
) -> CommandProber:
    def steady() -> bool:
        state = bus.state
        long_enough = timedelta(seconds=limits.PROBE_BUS_STEADY_S)
        return isinstance(state, Connected) and clock.now() - state.since >= long_enough

    async def ask(node: NodeId) -> ProbeReply:
        limit = timedelta(seconds=limits.PROBE_S)
        try:
            await bus.request(subjects.backend_list(node), encode(BackendList()), limit)
        except NoResponders:
            return ProbeReply.NO_RESPONDERS
        except RemudaError:
            return ProbeReply.UNKNOWN
        return ProbeReply.ANSWERED

    return CommandProber(frontend, store, ask, steady=steady, bus=plan.described, thresholds=thresholds)


@dataclass(frozen=True, slots=True)
class BusPlanner:
    """What every way to a bus takes."""

    settings: FrontendSettings
    frontend: FrontendId
    clock: Clock
    entropy: Entropy

    async def plan(self, host: str, folder: DataFolder, secrets: SecretStore) -> BusPlan:
        """Bundled without --nats-url, external with it."""
        if self.settings.nats_url is None:
            return await self._bundled(host, folder, secrets)
        return self._external(self.settings.nats_url.get_secret_value())

    async def _bundled(self, host: str, folder: DataFolder, secrets: SecretStore) -> BusPlan:
        settings = self.settings
        keys = await self._keys(secrets)
        server = NatsServer(
            folder.nats,
            keys,
            host=host,
            port=settings.nats_port,
            clock=self.clock,
            credentials_ttl=settings.nats_worker_jwt_ttl,
        )

        def open_bus() -> Bus:
            return self._bus(server.url, account_user(keys.account, self.frontend, self.clock), TlsFiles())

        def url_for(reached: str) -> str:
            return settings.nats_advertise_url or f"nats://{_bracketed(reached or host)}:{server.port}"

        issuer = AccountIssuer(keys.account, settings.nats_worker_jwt_ttl, server)

        def open_system_bus() -> Bus:
            login = account_user(keys.system_account, self.frontend, self.clock)
            return self._bus(server.url, login, TlsFiles())

        disconnects = Disconnects(open_system_bus, keys.account.public_key)
        return BusPlan(server, open_bus, issuer, url_for, disconnects)

    async def _keys(self, secrets: SecretStore) -> ClusterKeys:
        """Those of all frontends: the first one's."""
        fresh = ClusterKeys.create(self.entropy)
        return ClusterKeys(
            **{
                name: SecretStr(await secrets.secret(f"nats_{name}", seed.get_secret_value))
                for name, seed in (
                    ("operator_seed", fresh.operator_seed),
                    ("system_account_seed", fresh.system_account_seed),
                    ("account_seed", fresh.account_seed),
                )
            }
        )

    def _external(self, url: str) -> BusPlan:
        settings = self.settings
        if settings.nats_require_auth and settings.nats_account_seed is None:
            raise Misconfigured(
                "nats-require-auth is set, but there is no account seed to mint worker credentials with",
                hint="set REMUDA_NATS_ACCOUNT_SEED, or start without nats-require-auth",
            )
        account = None if settings.nats_account_seed is None else Account(settings.nats_account_seed)
        issuer: CredentialIssuer = NoIssuer()
        if account is not None:
            issuer = AccountIssuer(account, settings.nats_worker_jwt_ttl, None)
        shown = settings.nats_advertise_url or ",".join(parse_servers(url).urls)
        tls = TlsFiles(settings.nats_tls_ca, settings.nats_tls_cert, settings.nats_tls_key)
        login = self._login(account)
        return BusPlan(None, lambda: self._bus(url, login, tls), issuer, lambda _: shown)

    def _login(self, account: Account | None) -> AuthSource:
        """The most specific credentials given; those in the URL count when there are no others."""
        settings = self.settings
        if settings.nats_service_jwt is not None and settings.nats_service_seed is not None:
            return fixed(UserJwt(settings.nats_service_jwt.get_secret_value(), settings.nats_service_seed))
        if settings.nats_creds is not None:
            return creds_file(settings.nats_creds)
        if account is not None:
            return account_user(account, self.frontend, self.clock)
        if settings.nats_user:
            return fixed(UserPassword(settings.nats_user, settings.nats_password or SecretStr("")))
        return anonymous

    def _bus(self, url: str, login: AuthSource, tls: TlsFiles) -> Bus:
        log.info("bus_address", url=mask_url(url))
        name = f"frontend-{self.frontend}"
        return Bus(
            url, login, name=name, backoff=BUS_BACKOFF, entropy=self.entropy, clock=self.clock, tls=tls
        )


def _bracketed(host: str) -> str:
    plain = urlsplit(f"//{host}").hostname or host if host.startswith("[") else host
    return f"[{plain}]" if ":" in plain else plain
