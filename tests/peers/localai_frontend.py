"""A frontend as LocalAI's wire contract describes it, for our worker to join. It knows nothing of ours.

It keeps nodes in memory, records every call, and can be told to misbehave. There is no scheduler behind it.
"""

import asyncio
import hmac
import json
import ssl
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

JSON = dict[str, object]
Mint = Callable[[str], tuple[str, str]]
"""A node id to the JWT and seed of its bus user."""

_REASONS = {200: "OK", 201: "Created", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it came in. `action` is its last word: register, heartbeat, drain..."""

    method: str
    path: str
    authorization: str
    body: JSON

    @property
    def action(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class NodeRow:
    id: str
    name: str
    node_type: str
    status: str
    registrations: list[JSON] = field(default_factory=list)
    heartbeats: list[JSON] = field(default_factory=list)
    models: list[JSON] = field(default_factory=list)
    in_flight_polls: list[int] = field(default_factory=list)
    """In-flight counts to answer the next polls with, one each; afterwards the rows as they are."""


class LocalAiFrontend:
    """Use it as an async context manager. `port` 0 picks a free one; a fixed one lets it come back there."""

    def __init__(
        self,
        *,
        token: str = "",
        auto_approve: bool = True,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.token = token
        self.auto_approve = auto_approve
        self.mint: Mint | None = None
        self.extra_reply: JSON = {}  # Fields that LocalAI does not send.
        self.removal_reason = ""  # The same, of heartbeats of nodes that are not known.
        self.misbehaviour: dict[str, int | Literal["hang"]] = {}  # By action: a status, or no answer at all.
        self.nodes: dict[str, NodeRow] = {}
        self.calls: list[Call] = []
        self._port = port
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._closing = asyncio.Event()
        self._idle = asyncio.Event()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def actions(self) -> list[str]:
        return [call.action for call in self.calls]

    def of(self, action: str) -> list[Call]:
        return [call for call in self.calls if call.action == action]

    def node(self, name: str) -> NodeRow:
        return next(row for row in self.nodes.values() if row.name == name)

    def approve(self, name: str) -> None:
        row = self.node(name)
        assert row.status == "pending", "only a pending node can be approved"
        row.status = "healthy"

    def forget(self, name: str) -> None:
        """As when an admin deletes the node."""
        del self.nodes[self.node(name).id]

    async def __aenter__(self) -> Self:
        self._closing.clear()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, ssl=self._tls)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._closing.set()
        for connection in self._connections:
            connection.close()
        while self._connections:
            self._idle.clear()
            await self._idle.wait()
        await self._server.wait_closed()

    # HTTP.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while (request := await _read(reader)) is not None:
                self.calls.append(request)
                said = self.misbehaviour.get(request.action)
                if said == "hang":
                    await self._closing.wait()
                    return
                status, reply = (said, _node_error(said, "told to fail")) if said else self._answer(request)
                _write(writer, status, reply)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # The caller left.
        finally:
            writer.close()
            self._connections.discard(writer)
            self._idle.set()

    def _answer(self, call: Call) -> tuple[int, object]:
        if self.token and not call.authorization.startswith("Bearer "):
            return 401, {"error": "missing or invalid Authorization header"}
        if self.token and not _same(call.authorization.removeprefix("Bearer "), self.token):
            return 401, {"error": "invalid registration token"}
        match call.method, call.path.strip("/").split("/"):
            case "POST", ["api", "node", "register"]:
                return self._register(call.body)
            case "POST", ["api", "node", node_id, "heartbeat"]:
                return self._heartbeat(node_id, call.body)
            case "POST", ["api", "node", node_id, "drain"]:
                return self._become(node_id, "draining", "node set to draining")
            case "POST", ["api", "node", node_id, "resume"]:
                return self._become(node_id, "healthy", "node resumed")
            case ("POST", ["api", "node", node_id, "deregister"]) | ("DELETE", ["api", "node", node_id]):
                return self._become(node_id, "offline", "node set to offline")
            case "GET", ["api", "node", node_id, "models"]:
                return self._models(node_id)
            case _:
                return 404, _node_error(404, "no such route")

    # Nodes.

    def _register(self, body: JSON) -> tuple[int, object]:
        if self.token and not body.get("token"):
            return 401, _node_error(401, "registration token required")
        if self.token and not _same(str(body["token"]), self.token):
            return 401, _node_error(401, "invalid registration token")
        node_type = body.get("node_type") or "backend"
        if refusal := _refusal(body, node_type):
            return 400, _node_error(400, refusal)
        row = next((row for row in self.nodes.values() if row.name == body["name"]), None)
        if row is None:
            status = "healthy" if self.auto_approve else "pending"
            row = NodeRow(str(uuid.uuid4()), str(body["name"]), str(node_type), status)  # noqa: TID251
            self.nodes[row.id] = row
        elif self.auto_approve or row.status != "pending":
            row.status = "healthy"
        row.registrations.append(body)
        row.models = []
        return 201, self._register_reply(row)

    def _register_reply(self, row: NodeRow) -> JSON:
        reply: JSON = {
            "id": row.id,
            "name": row.name,
            "node_type": row.node_type,
            "status": row.status,
            "created_at": "0001-01-01T00:00:00Z",
            **self.extra_reply,
        }
        if self.mint is not None and row.status != "pending":
            reply["nats_jwt"], reply["nats_user_seed"] = self.mint(row.id)
        return reply

    def _heartbeat(self, node_id: str, body: JSON) -> tuple[int, object]:
        if (row := self.nodes.get(node_id)) is None:
            return 404, _node_error(404, "node not found", self.removal_reason)
        row.heartbeats.append(body)
        return 200, {"message": "heartbeat received"}

    def _become(self, node_id: str, status: str, message: str) -> tuple[int, object]:
        if (row := self.nodes.get(node_id)) is None:
            return 500, _node_error(500, "record not found")
        row.status = status
        row.models = []
        return 200, {"message": message}

    def _models(self, node_id: str) -> tuple[int, object]:
        if (row := self.nodes.get(node_id)) is None:
            return 500, _node_error(500, "record not found")
        if row.in_flight_polls:
            return 200, [{"id": "row", "model_name": "m", "in_flight": row.in_flight_polls.pop(0)}]
        return 200, row.models


def _refusal(body: JSON, node_type: object) -> str:
    if node_type not in ("backend", "agent"):
        return "invalid node_type"
    if not 1 <= len(str(body.get("name") or "").encode()) <= 255:
        return "name is required and has at most 255 bytes"
    if node_type == "backend" and not body.get("address"):
        return "address is required for backend workers"
    return ""


def _node_error(status: int, message: str, reason: str = "") -> JSON:
    ours = {"reason": reason} if reason else {}
    return {"error": {"code": status, "message": message, "type": "node_error", **ours}}


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


async def _read(reader: asyncio.StreamReader) -> Call | None:
    """The next request on the connection, None at its end. An unreadable body counts as an empty one."""
    if not (request_line := await reader.readline()):
        return None
    method, target, _ = request_line.decode().split()
    headers: dict[str, str] = {}
    while (line := (await reader.readline()).decode().strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    payload = await reader.readexactly(int(headers.get("content-length", "0")))
    return Call(method, target.partition("?")[0], headers.get("authorization", ""), _object(payload))


def _object(payload: bytes) -> JSON:
    try:
        document = json.loads(payload)
    except ValueError:
        return {}
    return dict(document) if isinstance(document, Mapping) else {}


def _write(writer: asyncio.StreamWriter, status: int, reply: object) -> None:
    payload = json.dumps(reply).encode()
    head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
