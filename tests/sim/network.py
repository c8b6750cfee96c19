"""Between workers and frontends: a load balancer, and a network that loses, repeats, delays and reorders."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import anyio
from pydantic import BaseModel, RootModel

from remuda.core import limits
from remuda.core.errors import FrontendUnreachable
from remuda.core.ids import BootId, NodeId
from remuda.wire.codec import decode, encode
from remuda.wire.nodes import (
    BusTrouble,
    Departure,
    Heartbeat,
    HeartbeatReply,
    ModelRow,
    NodeMessage,
    RegisterReply,
    RegisterRequest,
    error_text,
)
from remuda.worker.enrolment import takes_secrets
from remuda.worker.frontend import refusal
from tests.sim.frontends import Exchange, FrontendHost
from tests.sim.gateway import SHARED_TOKEN, Call
from tests.sim.world import World

M = TypeVar("M", bound=BaseModel)
_URL = "http://frontend:8080"


class _ModelRows(RootModel[Sequence[ModelRow]]):
    pass


class Sender(Protocol):
    """One life of a machine, as the network sees it."""

    @property
    def connected(self) -> bool:
        """Neither dead nor cut off."""
        ...

    @property
    def who(self) -> str:
        """The machine, whatever it says of itself."""
        ...

    @property
    def source(self) -> str:
        """Its address, which it cannot choose."""
        ...

    def about_to_register(self) -> None:
        """A checker's moment: may this machine register now?"""
        ...

    @property
    def boot_told(self) -> BootId | None:
        """In which it lives, if it is one who tells frontends."""
        ...

    def about_to_beat(self) -> None:
        """The same: may it send a heartbeat?"""
        ...


class Network:
    def __init__(self, world: World, frontends: Sequence[FrontendHost]) -> None:
        self._world = world
        self._frontends = frontends
        self._dice = world.dice.fork("network")

    def send(self, sender: Sender, path: str, body: bytes, bearer: str) -> Exchange:
        """The answer arrives in the exchange, or does not; what was sent travels on if the sender dies."""
        exchange, call = Exchange(), Call(path, body, sender.source, bearer)
        if sender.connected:
            if self._dice.chance(self._world.weather.repeated):
                self._world.trace.fault("repeated", path)
                self._world.tasks.start_soon(
                    self._carry, sender.who, call, Exchange(), self._dice.between(0.1, 20.0)
                )
            self._world.tasks.start_soon(self._carry, sender.who, call, exchange, self._delay_s(path))
        return exchange

    def farewell(self, node: NodeId, sender: Sender) -> None:
        """Somebody says that it leaves, truly in this boot, whatever its message says."""
        self._world.ledger.farewells.add((node, sender.boot_told))

    async def _carry(self, who: str, call: Call, exchange: Exchange, delay_s: float) -> None:
        weather, trace, path = self._world.weather, self._world.trace, call.path
        await anyio.sleep(delay_s)
        if self._dice.chance(weather.request_lost):
            trace.fault("request_lost", path)
            return
        frontend = self._choose()
        if frontend is None:
            exchange.over.set()
            return
        trace.event("asked", frontend.id, path)
        served = frontend.accept(call)
        await served.over.wait()
        self._world.identities.answered(who, path, served.answer)
        if self._dice.chance(weather.reply_lost):
            trace.fault("reply_lost", path)
            return
        trace.event("answered", path, served.answer[0] if served.answer else "reset")
        await anyio.sleep(self._delay_s(path))
        exchange.answer = served.answer
        exchange.over.set()

    def _choose(self) -> FrontendHost | None:
        """Mostly one that lives; now and then the balancer has not noticed a death yet."""
        frontend = self._dice.pick(self._frontends)
        if not frontend.up and self._dice.chance(0.8):
            frontend = next((one for one in self._frontends if one.up), frontend)
        return frontend if frontend.up else None

    def _delay_s(self, path: str) -> float:
        if self._dice.chance(self._world.weather.late):
            self._world.trace.fault("late", path)
            return self._dice.between(1.0, 25.0)
        return self._dice.between(0.001, 0.05)


class CallsOfMachine:
    """Implements worker.ports.FrontendCalls for one life of a machine."""

    def __init__(self, network: Network, sender: Sender, token: str = SHARED_TOKEN, secret: str = "") -> None:
        """`token` lets it register; `secret` is what it proves itself with, if it is a worker of ours."""
        self._network = network
        self._sender = sender
        self._token = self._bearer = token
        self._secret = secret

    async def register(self, request: RegisterRequest) -> RegisterReply:
        self._sender.about_to_register()
        self._bearer = self._token
        said = request.model_copy(update={"token": self._token, "node_secret": self._secret})
        reply = await self._call("register", RegisterReply, encode(said))
        self._bearer = self._secret if self._secret and takes_secrets(reply) else self._token
        return reply

    async def heartbeat(self, node: NodeId, beat: Heartbeat) -> HeartbeatReply:
        self._sender.about_to_beat()
        return await self._call(f"{node}/heartbeat", HeartbeatReply, encode(beat))

    async def bus_trouble(self, node: NodeId, trouble: BusTrouble) -> None:
        await self._call(f"{node}/bus-trouble", NodeMessage, encode(trouble))

    async def drain(self, node: NodeId, farewell: Departure) -> None:
        self._network.farewell(node, self._sender)
        await self._call(f"{node}/drain", NodeMessage, encode(farewell))

    async def deregister(self, node: NodeId, farewell: Departure) -> None:
        self._network.farewell(node, self._sender)
        await self._call(f"{node}/deregister", NodeMessage, encode(farewell))

    async def models(self, node: NodeId) -> Sequence[ModelRow]:
        return (await self._call(f"{node}/models", _ModelRows)).root

    async def _call(self, path: str, reply: type[M], body: bytes = b"") -> M:
        exchange = self._network.send(self._sender, path, body, self._bearer)
        with anyio.move_on_after(limits.FRONTEND_CALL_S):
            await exchange.over.wait()
        if exchange.answer is None or not self._sender.connected:
            raise FrontendUnreachable(f"{_URL} did not answer")
        status, content = exchange.answer
        if status >= 300:
            raise refusal(_URL, status, error_text(content))
        return decode(reply, content)
