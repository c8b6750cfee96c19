"""What follows from the frontend's answer to a registration, and the worker's state, a phase and a reason,
that comes of it. Pure.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from pydantic import SecretStr

from remuda.core import limits
from remuda.core.errors import Misconfigured
from remuda.core.ids import NodeId
from remuda.core.retry import Backoff
from remuda.wire.nodes import BUS_TROUBLE_FEATURE, NODE_SECRET, RegisterReply, WorkerTokens

APPROVAL = Backoff(
    timedelta(seconds=limits.APPROVAL_ASK_FIRST_S), timedelta(seconds=limits.APPROVAL_ASK_MOST_S)
)
_PENDING = "pending"


@dataclass(frozen=True, slots=True)
class IssuedBusUser:
    """A bus user as the registration brought it."""

    jwt: str = field(repr=False)
    seed: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class BusPolicy:
    """What this worker's own settings say about the bus."""

    url: str = field(default="", repr=False)  # Empty: the registration brings it.
    own_login: bool = False  # The settings hold a login; what the registration brings is ignored.
    require_auth: bool = False  # Never connect without credentials.


@dataclass(frozen=True, slots=True)
class Enrolment:
    """Who we are to the frontend, and how to reach the bus as that node."""

    node_id: NodeId
    approved: bool
    bus_url: str = field(repr=False)  # Empty: not known before approval.
    credentials: IssuedBusUser | None
    credentials_awaited: bool  # There is no use in connecting to the bus yet.
    takes_bus_trouble: bool = False  # The frontend wants to hear why commands cannot reach us.
    tokens: WorkerTokens | None = None  # What opens this worker; None: the frontend knows no such thing.

    @property
    def bus_usable(self) -> bool:
        return bool(self.bus_url) and not self.credentials_awaited


@dataclass(frozen=True, slots=True)
class EnrolmentStatus:
    """How things are between us and the frontend."""

    enrolment: Enrolment | None = None
    trouble: str = ""  # Why the latest attempt to register failed; empty when it did not.


@dataclass(frozen=True, slots=True)
class Verdict:
    enrolment: Enrolment
    again_after: timedelta | None  # None: only when it is asked for.


def judge(
    reply: RegisterReply, policy: BusPolicy, now: datetime, *, pending_replies: int, fraction: float
) -> Verdict:
    """`pending_replies` counts the answers in a row, this one included, that kept us waiting.

    Raises Misconfigured when no bus address is given.
    """
    pending = reply.status == _PENDING
    credentials = _credentials(reply, policy)
    # A Remuda frontend gives out credentials together with its approval; a bus that wants none is still
    # of no use before. LocalAI's worker goes ahead while pending, unless its settings insist on credentials.
    # Half a login is none, and says that one is wanted.
    half = bool(reply.nats_jwt) != bool(reply.nats_user_seed)
    insists = policy.require_auth or half or (pending and reply.remuda is not None)
    awaited = credentials is None and not policy.own_login and insists
    enrolment = Enrolment(
        node_id=NodeId(reply.id),
        approved=not pending,
        bus_url=policy.url or reply.nats_url,
        credentials=credentials,
        credentials_awaited=awaited,
        takes_bus_trouble=reply.remuda is not None and BUS_TROUBLE_FEATURE in reply.remuda.features,
        tokens=(reply.worker_tokens or WorkerTokens()) if takes_secrets(reply) else None,
    )
    if not enrolment.bus_url and not pending:
        raise Misconfigured("the frontend sent no bus address", hint="give its address with --nats-url")
    if pending or awaited:
        return Verdict(enrolment, APPROVAL.delay(pending_replies, fraction))
    return Verdict(enrolment, refresh_after(credentials.jwt, now) if credentials else None)


def takes_secrets(reply: RegisterReply) -> bool:
    """Whether this frontend knows nodes by their secret, and wants it with every later call."""
    return reply.remuda is not None and NODE_SECRET in reply.remuda.features


def refresh_after(jwt: str, now: datetime) -> timedelta | None:
    """When to renew this JWT, counted from now; None for one that does not expire."""
    claims = _claims(jwt)
    expires, issued = _instant(claims.get("exp")), _instant(claims.get("iat"))
    if expires is None:
        return None
    remaining = expires - now
    if issued is not None and not timedelta() < remaining < expires - issued:
        # It was made for this very answer: our clock is wrong, and by theirs all of its life is left.
        remaining = expires - issued
    return max(remaining * limits.CREDENTIALS_REFRESH_AT, timedelta(seconds=limits.CREDENTIALS_REFRESH_MIN_S))


def _credentials(reply: RegisterReply, policy: BusPolicy) -> IssuedBusUser | None:
    if policy.own_login or not (reply.nats_jwt and reply.nats_user_seed):
        return None
    return IssuedBusUser(reply.nats_jwt, reply.nats_user_seed)


def _claims(jwt: str) -> Mapping[str, object]:
    """What the JWT says of itself, unverified: it is the bus server's to judge. Empty when unreadable."""
    try:
        payload = jwt.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _instant(seconds: object) -> datetime | None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


class OpeningTokens:
    """Until a frontend has given this worker tokens of its own, and with frontends that give none, it is the
    registration token that opens everything."""

    def __init__(self, shared: SecretStr | None) -> None:
        self._shared = "" if shared is None else shared.get_secret_value()
        self.own = False
        self.http = self.grpc = self._shared

    def adopt(self, own: WorkerTokens | None) -> bool:
        """Those of the latest registration; None: the frontend gives none. Whether that changes anything."""
        before, self.own = (self.http, self.grpc), own is not None
        self.http = self._shared if own is None else own.http
        self.grpc = self._shared if own is None else own.grpc
        return before != (self.http, self.grpc)


class WorkerPhase(StrEnum):
    REGISTERING = "registering"
    WAITING_FOR_APPROVAL = "waiting for approval"
    CONNECTING = "connecting to the bus"
    READY = "ready"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class WorkerState:
    phase: WorkerPhase
    reason: str = ""
    node_id: NodeId | None = None


def describe(
    standing: EnrolmentStatus, reachable_as: NodeId | None, bus_trouble: str, stopping: str | None
) -> WorkerState:
    """Ready means reachable as the node that the frontend knows now, not as one it knew before."""
    enrolment = standing.enrolment
    node_id = enrolment.node_id if enrolment else None
    if stopping is not None:
        return WorkerState(WorkerPhase.STOPPING, stopping, node_id)
    if enrolment is None:
        return WorkerState(WorkerPhase.REGISTERING, standing.trouble)
    if not enrolment.approved:
        return WorkerState(WorkerPhase.WAITING_FOR_APPROVAL, standing.trouble, node_id)
    if enrolment.credentials_awaited:
        return WorkerState(WorkerPhase.CONNECTING, "the frontend has given no bus credentials yet", node_id)
    if reachable_as != node_id:
        return WorkerState(WorkerPhase.CONNECTING, bus_trouble, node_id)
    return WorkerState(WorkerPhase.READY, node_id=node_id)  # A failed renewal is in the log.
