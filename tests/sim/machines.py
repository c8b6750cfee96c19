"""Machines with a worker on them: ours, whose membership is the real code, and one that knows LocalAI's
contract and nothing of ours."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import anyio
from pydantic import SecretStr

from remuda.assembly.worker import BusOfWorker
from remuda.bus.auth import Login, UserJwt, anonymous
from remuda.bus.client import BUS_BACKOFF, Bus
from remuda.bus.messages import Connected, Down, Incoming
from remuda.core.errors import FrontendUnreachable, Rejected
from remuda.core.ids import BootId, MachineId, NodeId
from remuda.wire import subjects
from remuda.wire.nodes import SECRET_PREFIX, Departure, Heartbeat, RegisterReply, RegisterRequest
from remuda.worker.addresses import Advertised
from remuda.worker.enrolment import BusPolicy, refresh_after
from remuda.worker.hardware.model import Hardware
from remuda.worker.identity import Introduction, register_request
from remuda.worker.membership import Membership
from remuda.worker.ports import BusTarget
from remuda.worker.reporter import NothingYet
from tests.sim.network import CallsOfMachine, Network
from tests.sim.world import BUS_URL, HEARTBEAT, World
from tests.support.clocks import HostClock, elapsed_s
from tests.support.hardware import CARD, machine

_LOCALAI_RETRY_S = 30.0
REGISTRATIONS_PER_MINUTE_MOST = 20


def secret_of(number: int) -> str:
    return f"{SECRET_PREFIX}{number:040}"


class Life:
    """One boot of a machine's worker, until it ends by itself or is killed. Implements network.Sender."""

    def __init__(self, machine: "Machine", boot_id: BootId) -> None:
        self.machine = machine
        self.boot_id = boot_id
        self.dead = False
        self.node_id: Callable[[], NodeId | None] = lambda: None
        self.stop: Callable[[], None] = lambda: None
        self.scope = anyio.CancelScope()
        self._bus: Bus | None = None
        self._registered_at_s: list[float] = []

    @property
    def connected(self) -> bool:
        return not self.dead and not self.machine.partitioned

    @property
    def who(self) -> str:
        return self.machine.bus_name

    @property
    def source(self) -> str:
        return self.machine.host

    @property
    def boot_told(self) -> BootId | None:
        return self.boot_id if isinstance(self.machine, OurMachine) else None

    @property
    def bus_connected(self) -> bool:
        return self._bus is not None and isinstance(self._bus.state, Connected)

    def about_to_register(self) -> None:
        """Whatever goes wrong, a worker does not trample its frontend."""
        self._registered_at_s = [at_s for at_s in self._registered_at_s if at_s > elapsed_s() - 60.0]
        self._registered_at_s.append(elapsed_s())
        if len(self._registered_at_s) > REGISTRATIONS_PER_MINUTE_MOST:
            raise self.machine.world.trace.violated("registers_in_moderation", self.machine.name)

    def about_to_beat(self) -> None:
        """Losing the bus is noticed within the same instant, not within the same turn of the loop."""
        state = None if self._bus is None else self._bus.state
        if self.dead or isinstance(state, Connected):
            return
        if not isinstance(state, Down) or state.since < self.machine.clock.now():
            raise self.machine.world.trace.violated("no_heartbeat_without_the_bus", self.machine.name)

    def open_bus(self, login: Callable[[], Login]) -> Bus:
        world = self.machine.world
        self._bus = Bus(
            BUS_URL,
            login,
            name=self.machine.bus_name,
            backoff=BUS_BACKOFF,
            entropy=self.machine.dice,
            clock=self.machine.clock,
            make_link=world.broker.link,
        )
        return self._bus


class Machine:
    """Subclasses say what its worker does in one life."""

    def __init__(self, world: World, network: Network, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.bus_name = f"worker-{number}"
        self.dice = world.dice.fork(self.bus_name)
        self.clock = HostClock()
        self.network = network
        self.number = number
        self.host = f"10.0.{number}.1"
        self.moves = 0
        self.partitioned = False
        self.life: Life | None = None

    def start(self) -> None:
        assert self.life is None, "it runs already"
        self.life = Life(self, BootId(self.dice.uuid()))
        self.world.trace.event("started", self, self.life.boot_id)
        self.world.tasks.start_soon(self._run, self.life)

    def crash(self) -> None:
        assert self.life is not None, "only the living die"
        self.life.dead = True
        self.life.scope.cancel()
        self.life = None

    def isolate(self) -> None:
        self.partitioned = True
        self.world.broker.cut(self.bus_name)

    def rejoin(self) -> None:
        self.partitioned = False
        self.world.broker.mend(self.bus_name)

    def move(self) -> None:
        """It gets another address."""
        self.moves += 1
        self.host = f"10.0.{self.number}.{1 + self.moves}"

    async def live(self, life: Life) -> None:
        raise NotImplementedError

    async def _run(self, life: Life) -> None:
        ended = "was killed"
        with life.scope:
            try:
                await self.live(life)
                ended = "stopped"
            except Rejected as refusal:
                ended = f"was refused: {refusal.message}"
        self.world.trace.event("ended", self, ended)
        life.dead = True
        if self.life is life:
            self.life = None

    def __str__(self) -> str:
        return f"{self.bus_name}({self.name})"


class OurMachine(Machine):
    def __init__(self, world: World, network: Network, name: str, number: int) -> None:
        super().__init__(world, network, name, number)
        self.machine_id = MachineId(f"machine-{number}")
        self.secret = secret_of(number)

    async def current(self) -> Hardware:
        return machine(gpus=(CARD,))

    async def live(self, life: Life) -> None:
        introduction = Introduction(self.name, self.machine_id, life.boot_id, "0.1.0", {"rack": self.name})

        async def introduce() -> RegisterRequest:
            reached_at = Advertised(f"{self.host}:50051", f"{self.host}:50050")
            return register_request(introduction, await self.current(), reached_at)

        def open_bus(target: BusTarget) -> BusOfWorker:
            def login() -> Login:
                issued = target.credentials()
                return anonymous() if issued is None else UserJwt(issued.jwt, SecretStr(issued.seed))

            return BusOfWorker(life.open_bus(login), self.clock)

        membership = Membership(
            CallsOfMachine(self.network, life, secret=self.secret),
            introduce,
            open_bus,
            self,
            NothingYet(),
            boot_id=life.boot_id,
            heartbeat_interval=HEARTBEAT,
            bus=BusPolicy(),
            clock=self.clock,
            entropy=self.dice,
        )
        life.node_id = lambda: membership.state.value.node_id
        life.stop = lambda: membership.stop("told to")
        await membership.run()


class OldMachine(OurMachine):
    """A worker of release 0.1: it has a machine id and no secret. Now and then it is upgraded."""

    def __init__(self, world: World, network: Network, name: str, number: int) -> None:
        super().__init__(world, network, name, number)
        self.secret = ""

    def start(self) -> None:
        if self.moves == 0 and self.dice.chance(0.3):
            self.secret = secret_of(self.number)
        super().start()


class LocalAiMachine(Machine):
    """Sends no machine id, no boot and no report, looks at no answer to a heartbeat, renews its login."""

    async def live(self, life: Life) -> None:
        calls, told = CallsOfMachine(self.network, life), anyio.Event()
        reply = await self._register(calls)
        held, node = [reply], NodeId(reply.id)
        life.node_id, life.stop = lambda: node, told.set
        bus = life.open_bus(lambda: UserJwt(held[-1].nats_jwt, SecretStr(held[-1].nats_user_seed)))

        async def stop_heard(_: Incoming) -> None:
            told.set()

        async with anyio.create_task_group() as tasks:
            await tasks.start(bus.run)
            tasks.start_soon(self._beat, life, calls, node)
            tasks.start_soon(self._renew, calls, held)
            tasks.start_soon(bus.subscribe, subjects.node_stop(node), stop_heard)
            await told.wait()
            tasks.cancel_scope.cancel()
        try:
            await calls.drain(node, Departure())
            await calls.deregister(node, Departure())
        except (FrontendUnreachable, Rejected):
            return

    @property
    def _introduction(self) -> RegisterRequest:
        return RegisterRequest(name=self.name, address=f"{self.host}:50051", total_ram=1 << 34)

    async def _register(self, calls: CallsOfMachine) -> RegisterReply:
        """Until it has credentials."""
        delay_s = 2.0
        while True:
            try:
                reply = await calls.register(self._introduction)
                if reply.nats_jwt:
                    return reply
            except (FrontendUnreachable, Rejected):
                pass
            await anyio.sleep(delay_s)
            delay_s = min(delay_s * 2, _LOCALAI_RETRY_S)

    async def _beat(self, life: Life, calls: CallsOfMachine, node: NodeId) -> None:
        while True:
            await anyio.sleep(HEARTBEAT.total_seconds())
            if life.bus_connected:
                try:
                    await calls.heartbeat(node, Heartbeat(available_ram=1 << 33))
                except (FrontendUnreachable, Rejected):
                    continue

    async def _renew(self, calls: CallsOfMachine, held: list[RegisterReply]) -> None:
        while True:
            wait = refresh_after(held[-1].nats_jwt, self.clock.now()) or timedelta(hours=1)
            await anyio.sleep(max(wait.total_seconds(), 1.0))
            try:
                reply = await calls.register(self._introduction)
            except (FrontendUnreachable, Rejected):
                await anyio.sleep(_LOCALAI_RETRY_S)
            else:
                if reply.nats_jwt:
                    held[:] = [reply]


class Impostor:
    """A program somewhere else that has the token which all workers share, and knows all names, ids and
    machine ids. Implements network.Sender."""

    connected = True
    source = "10.66.6.6"
    who = "impostor"
    boot_told = BootId("impostor")

    def __init__(self, network: Network) -> None:
        self._calls = CallsOfMachine(network, self)
        self._network = network

    def about_to_register(self) -> None:
        """It tramples as it likes."""

    def about_to_beat(self) -> None:
        """It needs no bus."""

    async def register(self, name: str, machine_id: str, address: str, secret: str) -> None:
        wanted = RegisterRequest(name=name, address=address, machine_id=machine_id)
        calls = CallsOfMachine(self._network, self, secret=secret)
        await _attempted(calls.register(wanted))

    async def speak_as(self, node: NodeId) -> None:
        await _attempted(self._calls.heartbeat(node, Heartbeat(available_ram=1)))
        await _attempted(self._calls.drain(node, Departure()))
        await _attempted(self._calls.deregister(node, Departure()))


async def _attempted(call: Awaitable[object]) -> None:
    try:
        await call
    except (FrontendUnreachable, Rejected):
        return
