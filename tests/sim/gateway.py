"""The node API without HTTP: the same views and registry, messages encoded and decoded as on the wire."""

from pydantic import BaseModel

from remuda.core.entropy import Entropy
from remuda.core.errors import Invalid, RemudaError
from remuda.core.ids import BootId, NodeId
from remuda.fleet.admission import Beat
from remuda.fleet.registry import Registry
from remuda.gateway import views
from remuda.gateway.nodes import FEATURES
from remuda.wire import nodes as wire
from remuda.wire.codec import decode, encode
from tests.sim.world import BUS_URL

Answer = tuple[int, bytes]


async def answer(registry: Registry, entropy: Entropy, path: str, body: bytes) -> Answer:
    """`path` is what follows /api/node/."""
    try:
        return await _answer(registry, entropy, path, body)
    except RemudaError as error:
        return error.http_status, encode(wire.NodeError.of(error.http_status, error.message))


async def _answer(registry: Registry, entropy: Entropy, path: str, body: bytes) -> Answer:
    if path == "register":
        return 201, await _register(registry, entropy, body)
    node_id, _, verb = path.partition("/")
    said: BaseModel
    match verb:
        case "heartbeat":
            await registry.heartbeat(_beat(NodeId(node_id), body))
            said = wire.HeartbeatReply()
        case "bus-trouble":
            trouble = views.bus_trouble(decode(wire.BusTrouble, body))
            await registry.cut_off(NodeId(node_id), trouble)
            said = wire.NODE_NOT_COMMANDABLE
        case "drain":
            await registry.leave(NodeId(node_id), _leaving_boot(body))
            said = wire.NODE_DRAINING
        case "deregister":
            await registry.depart(NodeId(node_id), _leaving_boot(body))
            said = wire.NODE_OFFLINE
        case "models":
            await registry.standing(NodeId(node_id))
            return 200, b"[]"
        case _:
            raise Invalid(f"there is no {verb}")
    return 200, encode(said)


def _leaving_boot(body: bytes) -> BootId | None:
    return BootId(decode(wire.Farewell, body).boot_id) or None


def _beat(node_id: NodeId, body: bytes) -> Beat:
    return views.beat(node_id, decode(wire.Heartbeat, body))


async def _register(registry: Registry, entropy: Entropy, body: bytes) -> bytes:
    admitted = await registry.register(views.candidate(decode(wire.RegisterRequest, body), entropy, body))
    node, credentials = admitted.node, admitted.credentials
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
            remuda=wire.FrontendIdentity(version="simulated", features=FEATURES),
        )
    )
