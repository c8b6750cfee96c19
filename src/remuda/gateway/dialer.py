"""Calls each node's advertised address once in a while: a node may reach us and yet be out of our reach
(a firewall, a wrong address), and nothing else would say so before the first request fails."""

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import anyio
import structlog
from anyio.abc import ByteStream, TaskStatus

from remuda.core import limits
from remuda.core.errors import RemudaError
from remuda.core.ids import BootId, FrontendId, NodeId
from remuda.core.os_errors import os_reason
from remuda.core.reach import host_and_port
from remuda.fleet.health import Reachability, Standing, Thresholds
from remuda.fleet.model import Dial, Node, NodeType
from remuda.fleet.ports import FleetStore
from remuda.host.outbound import AddressRefused, connected
from remuda.wire.node_facts import WORKER_HEADER, worker_mark

log = structlog.get_logger()
_NO_ADDRESS = "not a HOST:PORT address"
_HEAD_BYTES_MAX: Final = 4096
_MARK: Final = re.compile(rb"\r\n%s: ([0-9a-f]+)\r\n" % WORKER_HEADER.encode(), re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LastDial:
    boot_id: BootId
    at: datetime
    answered: bool
    failing_since: datetime | None = None  # None: it answered last.

    grace_s: float = limits.DIAL_GRACE_S
    left_bus_at: datetime | None = (
        None  # Its connection to the bus was closed, and it has not answered since.
    )

    @property
    def settled(self) -> bool:
        """It answered, or has failed to for so long that it is worth telling."""
        if self.failing_since is None:
            return True
        return self.at - self.failing_since >= timedelta(seconds=self.grace_s)


def with_bus_closed(last: LastDial, before: LastDial | None, node: Node, *, lost: bool) -> LastDial:
    """`lost`: the node's connection to the bus was closed just now. One that was closed before stays so until
    the node answers, is heard again, or starts anew."""
    if last.answered:
        return last
    if lost:
        return replace(last, grace_s=limits.DIAL_LOST_GRACE_S, left_bus_at=last.at)
    if before is None or before.boot_id != node.boot_id or before.left_bus_at is None:
        return last
    return last if node.last_heard > before.left_bus_at else replace(last, left_bus_at=before.left_bus_at)


def after_dial(node: Node, before: LastDial | None, *, answered: bool, now: datetime) -> LastDial:
    """What is known of the node after one more call."""
    if answered:
        return LastDial(node.boot_id, now, True)
    if before is None or before.boot_id != node.boot_id:
        # Our workers register when their HTTP server answers; LocalAI's open theirs some seconds later.
        grace_s = limits.DIAL_GRACE_S if node.version else limits.DIAL_FIRST_GRACE_S
        return LastDial(node.boot_id, now, False, now, grace_s)
    grace_s = limits.DIAL_GRACE_S if before.answered else before.grace_s
    return LastDial(node.boot_id, now, False, before.failing_since or now, grace_s)


def due(standings: Sequence[Standing], last: Mapping[NodeId, LastDial], now: datetime) -> list[Node]:
    """Nodes to call now: those that are heard and were not called in this boot, or not lately. One that has
    begun not to answer is called until that is certain, also when it is no longer heard."""
    return [
        standing.node
        for standing in standings
        if _may_be_called(standing)
        and (_is_heard(standing) or _is_unsettled(standing.node, last.get(standing.node.id)))
        and _is_due(standing.node, last.get(standing.node.id), now)
    ]


def _may_be_called(standing: Standing) -> bool:
    """The address of an unapproved node may be anywhere, so it is not called."""
    node, present = standing.node, standing.reachability in (Reachability.UP, Reachability.SILENT)
    return present and node.approved and node.node_type is NodeType.BACKEND


def _is_heard(standing: Standing) -> bool:
    cut_off = standing.reachability is Reachability.SILENT and bool(standing.node.cut_off)
    return standing.reachability is Reachability.UP or cut_off  # One that is cut off calls us all the same.


def _is_unsettled(node: Node, last: LastDial | None) -> bool:
    return last is not None and last.boot_id == node.boot_id and not last.settled


def _is_due(node: Node, last: LastDial | None, now: datetime) -> bool:
    if last is None or last.boot_id != node.boot_id:
        return True
    if not last.settled or _failing_briefly(last):
        return True
    wait_s = limits.DIAL_EVERY_S if last.answered else limits.DIAL_RETRY_EVERY_S
    return now - last.at >= timedelta(seconds=wait_s)


def _failing_briefly(last: LastDial) -> bool:
    """A port that opened late should not be called closed for longer than it was."""
    since = last.failing_since
    return since is not None and last.at - since < timedelta(seconds=limits.DIAL_EAGER_S)


async def call(address: str, mark: str = "") -> str:
    """Ask `GET /healthz` there. Why it did not answer, in words; empty when it did. `mark` is what our
    workers say of themselves: where one has ended, another may have its port."""
    parts = host_and_port(address)
    if parts is None:
        return _NO_ADDRESS
    host, port = parts
    try:
        with anyio.fail_after(limits.DIAL_S):
            async with await connected(host, port, lambda one: anyio.connect_tcp(one, port)) as stream:
                await stream.send(
                    f"GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode()
                )
                answer = await _head(stream)
    except UnicodeError:  # A name that DNS cannot have.
        return _NO_ADDRESS
    except TimeoutError:
        return f"no answer within {limits.DIAL_S:.0f} s"
    except AddressRefused as error:
        return error.strerror or "its address is not allowed"
    except socket.gaierror:
        return "its host name cannot be resolved here"
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return "the connection was closed"
    except OSError as error:
        return _why_not_connected(error)
    if not answer.startswith(b"HTTP/1."):
        return "something else answers there"
    found = _MARK.search(answer)
    return "another worker answers there" if mark and found and found[1].decode() != mark else ""


async def _head(stream: ByteStream) -> bytes:
    """The status line and headers, or the beginning of what is sent instead."""
    head = await stream.receive(_HEAD_BYTES_MAX)
    with suppress(anyio.EndOfStream):
        while head.startswith(b"HTTP/1.") and b"\r\n\r\n" not in head and len(head) < _HEAD_BYTES_MAX:
            head += await stream.receive(_HEAD_BYTES_MAX - len(head))
    return head


def _why_not_connected(error: OSError) -> str:
    """The library raises an error of its own, because of one or several of the system."""
    cause = error.__cause__ or error
    each = cause.exceptions if isinstance(cause, BaseExceptionGroup) else (cause,)
    found = [one for one in each if isinstance(one, OSError)] or [error]
    if any(isinstance(one, ConnectionRefusedError) for one in found):
        return "the connection was refused"
    reason = os_reason(found[0])
    return reason[:1].lower() + reason[1:]


class Dialer:
    """`bus_user` is the name by which a node's worker is known to the bus; None: it has none of its own."""

    def __init__(
        self,
        frontend: FrontendId,
        store: FleetStore,
        thresholds: Thresholds,
        bus_user: Callable[[NodeId], str | None] = lambda node: None,
    ) -> None:
        self._frontend = frontend
        self._store = store
        self._thresholds = thresholds
        self._bus_user = bus_user
        self._last: dict[NodeId, LastDial] = {}
        self._left_bus: set[str] = set()  # Bus users whose workers are to be called at once.
        self._wanted = anyio.Event()

    def left_bus(self, user: str) -> None:
        """This bus user's connection was closed: its worker may have ended, or is about to connect again."""
        if len(self._left_bus) < limits.DIALS_WANTED_MAX:
            self._left_bus.add(user)
            self._wanted.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            try:
                await self.dial_once()
            except RemudaError as error:
                log.warning("dials_not_recorded", reason=error.message)
            with anyio.move_on_after(limits.DIAL_SOON_S if self._left_bus else limits.LIVENESS_EVERY_S):
                await self._wanted.wait()
                await anyio.sleep(limits.DIAL_SOON_S)
            self._wanted = anyio.Event()

    @property
    def wanted(self) -> frozenset[str]:
        """Bus users whose nodes are to be called at once."""
        return frozenset(self._left_bus)

    async def dial_once(self) -> None:
        # Taken before the fleet is read, so that a worker is never younger than the news about it; what comes
        # during the calls is for the next look, as the call may have been answered before.
        closed, self._left_bus = self._left_bus, set()
        try:
            await self._dial(closed)
        except RemudaError:
            self._left_bus |= closed
            raise

    async def _dial(self, closed: set[str]) -> None:
        """`closed`: bus users whose connections were closed."""
        fleet = await self._store.fleet()
        standings = fleet.standings(self._thresholds)
        present = {standing.node.id for standing in standings}
        self._last = {node_id: dial for node_id, dial in self._last.items() if node_id in present}
        nodes = due(standings, self._last, fleet.now)
        lost = self._lost(standings, closed)
        nodes += [node for node in lost.values() if node not in nodes]
        dials: list[Dial] = []
        limiter = anyio.CapacityLimiter(limits.DIALS_AT_ONCE_MAX)

        async def dial(node: Node) -> None:
            async with limiter:
                problem = await call(node.http_address, worker_mark(node.machine_id))
            before = self._last.get(node.id)
            last = after_dial(node, before, answered=not problem, now=fleet.now)
            last = with_bus_closed(last, before, node, lost=node.id in lost)
            bus_closed = last.left_bus_at is not None
            if bus_closed:
                problem = f"{problem}, and its connection to the bus is closed, too"
            self._last[node.id] = last
            if last.settled:
                dials.append(Dial(node.id, self._frontend, problem, fleet.now, node.boot_id, bus_closed))
            elif node.id in lost:
                self._left_bus.add(self._bus_user(node.id) or "")

        async with anyio.create_task_group() as calls:
            for node in nodes:
                calls.start_soon(dial, node)
        if dials:
            await self._store.record_dials(dials)

    def _lost(self, standings: Sequence[Standing], closed: set[str]) -> Mapping[NodeId, Node]:
        """Nodes whose workers' connections to the bus were closed. Other users are frontends, or workers that
        said goodbye."""
        if not closed:
            return {}
        nodes = [standing.node for standing in standings if _may_be_called(standing)]
        return {node.id: node for node in nodes if self._bus_user(node.id) in closed}
