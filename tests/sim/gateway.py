"""The node API without HTTP: the same views and registry, messages encoded and decoded as on the wire."""

from dataclasses import dataclass

from pydantic import BaseModel

from remuda.core.entropy import Entropy
from remuda.core.errors import Invalid, RemudaError, Unauthorized
from remuda.core.ids import BootId, NodeId
from remuda.fleet.identity import CallerIdentity, hash_of
from remuda.fleet.registry import Registry
from remuda.gateway import node_views
from remuda.gateway.nodes import FEATURES
from remuda.wire import nodes as wire
from remuda.wire.codec import decode, encode
from tests.sim.world import BUS_URL
from tests.support.nodes import TOKENS

Answer = tuple[int, bytes]


SHARED_TOKEN = "shared"


@dataclass(frozen=True, slots=True)
class Call:
    """What a frontend gets to see of a call. `path` is what follows /api/node/."""

    path: str
    body: bytes
    source: str
    bearer: str

    @property
    def caller(self) -> CallerIdentity:
        return CallerIdentity(self.source, hash_of(self.bearer.encode()), self.bearer == SHARED_TOKEN)


async def answer(registry: Registry, entropy: Entropy, call: Call) -> Answer:
    try:
        return await _answer(registry, entropy, call)
    except RemudaError as error:
        return error.http_status, encode(wire.NodeError.of(error.http_status, error.message))


async def _answer(registry: Registry, entropy: Entropy, call: Call) -> Answer:
    if call.path == "register":
        return 201, await _register(registry, entropy, call)
    node_id, _, verb = call.path.partition("/")
    body, caller = call.body, call.caller
    said: BaseModel
    match verb:
        case "heartbeat":
            await registry.heartbeat(node_views.beat(NodeId(node_id), caller, decode(wire.Heartbeat, body)))
            said = wire.HeartbeatReply()
        case "bus-trouble":
            trouble = node_views.bus_trouble(decode(wire.BusTrouble, body), "", "")
            await registry.cut_off(NodeId(node_id), caller, trouble)
            said = wire.NODE_NOT_COMMANDABLE
        case "drain":
            await registry.leave(NodeId(node_id), caller, _leaving_boot(body))
            said = wire.NODE_DRAINING
        case "deregister":
            await registry.depart(NodeId(node_id), caller, _leaving_boot(body))
            said = wire.NODE_OFFLINE
        case "models":
            await registry.identify(NodeId(node_id), caller)
            return 200, b"[]"
        case _:
            raise Invalid(f"there is no {verb}")
    return 200, encode(said)


def _leaving_boot(body: bytes) -> BootId | None:
    return BootId(decode(wire.Departure, body).boot_id) or None


async def _register(registry: Registry, entropy: Entropy, call: Call) -> bytes:
    message = decode(wire.RegisterRequest, call.body)
    invite = TOKENS.invited(message.name, call.bearer)
    if invite is None and call.bearer != SHARED_TOKEN:
        raise Unauthorized("invalid registration token")
    admitted = await registry.register(node_views.candidate(message, entropy, call.body, call.source, invite))
    node, credentials, tokens = admitted.node, admitted.credentials, admitted.tokens
    return encode(
        wire.RegisterReply(
            id=node.id,
            name=node.name,
            node_type=node.node_type,
            status="healthy" if node.approved else "pending",
            created_at=node.created_at,
            nats_jwt=credentials.jwt if credentials else "",
            nats_user_seed=credentials.seed if credentials else "",
            nats_url=BUS_URL,
            worker_tokens=wire.WorkerTokens(http=tokens.http, grpc=tokens.grpc) if tokens else None,
            remuda=wire.FrontendIdentity(version="simulated", features=FEATURES),
        )
    )
