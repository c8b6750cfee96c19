"""One key of the supervisor's table: its process, or the next one, or why there is none; and the life of
each such process, until it answers (it, and not another in its place), while it serves, and what ended
it.

The entry's task is the only one that starts and ends processes for the key, so there are never two of
them.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import anyio
import structlog

from remuda.core import limits
from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.core.errors import RemudaError
from remuda.core.events import Notifier
from remuda.host.restarts import GiveUp, Restart, after_exit
from remuda.worker.processes.exit_reasons import (
    Ended,
    Over,
    PortLost,
    Useless,
    describe_end,
    port_in_use,
    without_lines,
)
from remuda.worker.processes.model import (
    BackendTimeouts,
    Launch,
    PortBook,
    ProcessPhase,
    ProcessStatus,
    Protocol,
    Recipe,
    Stopped,
)
from remuda.worker.processes.ports import Backends, Machine, PortListener, Process

_SHARE_OF_AGE: Final = 0.03


@dataclass(frozen=True, slots=True)
class NotReady:
    """It did not answer well in time; `words` are about the last try."""

    words: str


@dataclass(frozen=True, slots=True)
class Taken:
    """Another program listens where the process should."""


def pause(age: timedelta) -> timedelta:
    """Until a starting process is asked again: short at first, for most start in no time, and cheap later."""
    seconds = max(age.total_seconds() * _SHARE_OF_AGE, limits.BACKEND_HEALTH_FIRST_S)
    return timedelta(seconds=min(seconds, limits.BACKEND_HEALTH_MOST_S))


async def answered(
    backends: Backends, process: Process, port: int, recipe: Recipe, limit: timedelta
) -> NotReady | Taken | None:
    """Wait for the first good answer of this process; None when it came."""
    began, words, ours = anyio.current_time(), "no answer", False
    with anyio.move_on_after(limit.total_seconds()):
        while True:
            age = timedelta(seconds=anyio.current_time() - began)
            await anyio.sleep(pause(age).total_seconds())
            answer = await backends.health(port, recipe)
            words = answer.words
            if answer.refused or (ours and not answer.healthy):
                continue
            listener = await process.listener_on(port)
            if listener is PortListener.OTHERS:
                return Taken()
            ours = listener is PortListener.OURS
            if ours and answer.healthy:
                return None
    return NotReady(words)


OnPhase = Callable[[ProcessPhase, str], None]


class Life:
    def __init__(
        self,
        process: Process,
        port: int,
        recipe: Recipe,
        backends: Backends,
        *,
        start_left: timedelta,
        watch: timedelta,
    ) -> None:
        """`start_left` is what others before it have left of the time for a start; `watch` how long it is
        left alone between two looks at it."""
        self.was_ready = False
        self._process = process
        self._port = port
        self._recipe = recipe
        self._backends = backends
        self._start_left = start_left
        self._watch_s = watch.total_seconds()

    async def until_over(self, stop_wanted: anyio.Event, on_phase: OnPhase) -> Over | None:
        """None: a stop is wanted. Otherwise it has exited."""
        over: list[Over | None] = []

        async def first(part: Callable[[], Awaitable[Over | None]]) -> None:
            over.append(await part())
            parts.cancel_scope.cancel()

        async def stopped() -> None:
            await stop_wanted.wait()

        async def ended() -> Over:
            return Ended(await self._process.wait())

        async def served() -> Over:
            return await self._become_ready() or await self._serve(on_phase)

        async with anyio.create_task_group() as parts:
            for part in (stopped, ended, served):
                parts.start_soon(first, part)
        return over[0]

    async def _become_ready(self) -> Useless | PortLost | None:
        match await answered(self._backends, self._process, self._port, self._recipe, self._start_left):
            case NotReady(words):
                return Useless(self._why_silent(words, self._process.listening()))
            case Taken():
                return PortLost(self._port)
        return None

    def _why_silent(self, words: str, listening: frozenset[int] | None) -> str:
        limit_s = self._recipe.start_limit.total_seconds()
        text = f"did not become ready on port {self._port} within {limit_s:g} s: {words}"
        if listening and self._port not in listening:
            text += f" (it listens on {', '.join(map(str, sorted(listening)))} instead)"
        return text

    async def _serve(self, on_phase: OnPhase) -> Useless:
        """Until it has closed its port for good. Silence alone ends nothing: it may be at work."""
        self.was_ready = True
        on_phase(ProcessPhase.READY, "")
        phase, refusals = ProcessPhase.READY, 0
        while True:
            pause_s = limits.BACKEND_WATCH_AGAIN_S if refusals else self._watch_s
            await anyio.sleep(pause_s)
            answer = await self._backends.health(self._port, self._recipe)
            refusals = refusals + 1 if answer.refused else 0
            if refusals >= limits.BACKEND_REFUSALS_MAX:
                return Useless(f"closed its port {self._port} but is still running")
            seen = ProcessPhase.READY if answer.healthy else ProcessPhase.UNRESPONSIVE
            if seen is not phase:
                phase = seen
                on_phase(seen, "" if answer.healthy else answer.words)


log = structlog.get_logger(__name__)

_INSTANCE_BYTES = 9
_ANSWERING: Final = (ProcessPhase.READY, ProcessPhase.UNRESPONSIVE)


@dataclass(frozen=True, slots=True)
class SupervisorContext:
    """What every entry of one supervisor shares."""

    machine: Machine
    backends: Backends
    ports: PortBook
    clock: Clock
    entropy: Entropy
    changed: Callable[[], None]  # Something that a report tells is new.
    timeouts: BackendTimeouts


@dataclass(frozen=True, slots=True)
class _Ending:
    """Why a life is over, without having been asked for."""

    reason: str
    lived: timedelta = timedelta()
    port_lost: int = 0  # To another program, before it could listen on it.


class ProcessEntry:
    """`live` it once, in a task. `replica` tells how it stands; `wish_stop` ends it, whatever it does."""

    def __init__(self, launch: Launch, context: SupervisorContext) -> None:
        self.launch = launch
        self.gone = anyio.Event()  # No process is left, and the port is released.
        self.stuck = ""  # Why the process cannot be ended; empty unless that was tried in vain.
        self.freed = False
        self.not_freed = ""  # Why not; empty unless it was asked to.
        self.failure = ""  # Why it never became ready; such an entry does not stay.
        self._context = context
        self._stop_wanted = anyio.Event()
        self._free_first = True
        self._stamp = ""
        self._was_ever_ready = False
        self._last_ending = ""  # Frontends may hear of it only once the next process runs.
        self._moves = Notifier()
        self.replica = ProcessStatus(
            launch.key,
            launch.backend,
            launch.names,
            launch.folder,
            launch.recipe.protocol,
            ProcessPhase.STARTING,
            since=context.clock.now(),
        )

    # What others may ask.

    def usable(self, name: str) -> bool:
        """It lives, is of the backend called `name`, and runs from the folder that is installed now.

        One that does not answer counts: it may be busy, and to replace it would cut off its callers.
        """
        return (
            self.replica.phase in _ANSWERING
            and name in self.launch.names
            and self._stamp == self._context.machine.folder_stamp(self.launch.folder)
        )

    def serves(self, launch: Launch) -> bool:
        """What is wanted is what this entry runs, or is about to."""
        if self.replica.phase is ProcessPhase.STARTING:
            return self.launch == launch
        return self.usable(launch.backend) and self.launch.recipe == launch.recipe

    async def settled(self) -> ProcessStatus:
        """Waits while it starts."""
        while self.replica.phase is ProcessPhase.STARTING and not self.gone.is_set():
            await self._moves.changed.wait()
        return self.replica

    async def confirmed(self) -> bool:
        """Not, if it is believed to answer and nothing listens there, for a reason other than its end. That
        it ended is seen a moment later than by its callers; that moment is waited for here."""
        seen = self.replica
        if seen.phase not in _ANSWERING:
            return True
        answer = await self._context.backends.health(seen.port, self.launch.recipe)
        if answer.healthy:
            return True
        with anyio.move_on_after(limits.BACKEND_END_NOTICED_S):
            while self.replica.instance == seen.instance and self.replica.phase in _ANSWERING:
                await self._moves.changed.wait()
            return True
        return not answer.refused

    def wish_stop(self, *, free: bool) -> None:
        """The first wish counts; a later one that is less patient makes it so."""
        self._free_first = self._free_first and free
        if not self._stop_wanted.is_set():
            self._stop_wanted.set()
            self._move(ProcessPhase.STOPPING)

    @property
    def stopping(self) -> bool:
        return self._stop_wanted.is_set()

    def outcome(self) -> Stopped:
        trouble = "" if self.gone.is_set() else self.stuck or "it is still stopping"
        return Stopped(
            self.launch.key, self.replica.port, self.freed, self.gone.is_set(), trouble, self.not_freed
        )

    # Its life.

    async def live(self, leave: Callable[[], None]) -> None:
        """Until it is stopped, or could not be started in the first place.

        `leave` is called at the end, before waiting tasks are woken."""
        short_lives = 0
        try:
            while not self.stopping:
                ending = await self._one_life()
                if ending is None:
                    return
                if not self._was_ever_ready:
                    self.failure = ending.reason
                    return
                short_lives = await self._before_next(ending, short_lives)
        finally:
            leave()
            self.gone.set()
            self._announce()

    async def _before_next(self, ending: _Ending, short_lives: int) -> int:
        """Wait as policy says, for ever once it has given up; a stop cuts either short."""
        self._last_ending = without_lines(ending.reason)
        match after_exit(self._context.timeouts.restarts, short_lives, ending.lived):
            case Restart(delay, count):
                self._move(ProcessPhase.WAITING, ending.reason)
                self._note("backend_restart_planned", in_s=delay.total_seconds(), reason=ending.reason)
                with anyio.move_on_after(delay.total_seconds()):
                    await self._stop_wanted.wait()
            case GiveUp(why):
                count = 0
                self._move(ProcessPhase.FAILED, f"{ending.reason}; {why}")
                self._note("backend_given_up", reason=ending.reason)
                await self._stop_wanted.wait()
        self.replica = replace(self.replica, restarts=self.replica.restarts + 1)
        return count

    async def _one_life(self) -> _Ending | None:
        """One process, or several while other programs take their ports. None: it was asked to stop."""
        ready_by = anyio.current_time() + self.launch.recipe.start_limit.total_seconds()
        lost: list[int] = []
        while True:
            ending = await self._one_process(ready_by)
            if ending is None:
                return None
            if ending.port_lost:
                lost.append(ending.port_lost)
                self._note("backend_port_lost", port=ending.port_lost, ports_lost=len(lost))
                if len(lost) < limits.BACKEND_PORTS_MAX and anyio.current_time() < ready_by:
                    continue
            return replace(ending, reason=_after_losing(lost) + ending.reason)

    async def _one_process(self, ready_by: float) -> _Ending | None:
        """From taking a port to releasing it. None: it was asked to stop."""
        context, key, recipe = self._context, self.launch.key, self.launch.recipe
        began = anyio.current_time()
        try:
            port = context.ports.take(key, context.clock.monotonic(), context.machine.port_free)
        except RemudaError as error:
            return _Ending(str(error))
        instance = context.entropy.token(_INSTANCE_BYTES)
        self._stamp = context.machine.folder_stamp(self.launch.folder)
        try:
            process = await self._begin(instance, port)
        except RemudaError as error:
            context.ports.release(port, context.clock.monotonic())
            return _Ending(str(error))
        life = Life(
            process,
            port,
            recipe,
            context.backends,
            start_left=timedelta(seconds=ready_by - began),
            watch=context.timeouts.watch,
        )
        over: Over | None = None
        cut_short = True
        try:
            over = await life.until_over(self._stop_wanted, self._move)
            cut_short = False
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(process, port, was_ready=life.was_ready, only_try=cut_short)
        if over is None or self.stopping:
            return None
        return self._ending(process, port, over, life.was_ready, anyio.current_time() - began)

    def _ending(self, process: Process, port: int, over: Over, was_ready: bool, lived_s: float) -> _Ending:
        """Once it is gone: a process that has its port then took it."""
        stderr = process.stderr_tail(limits.BACKEND_STDERR_LINES)
        taken = port_in_use(stderr) or not self._context.machine.port_free(port)
        if isinstance(over, Ended) and taken and not was_ready:
            over = PortLost(port, over.code)
        reason = describe_end(over, stderr, was_ready=was_ready, oom=process.oom_killed())
        lost = over.port if isinstance(over, PortLost) else 0
        return _Ending(reason, timedelta(seconds=lived_s), lost)

    async def _begin(self, instance: str, port: int) -> Process:
        command = self.launch.recipe.command(port)
        with anyio.CancelScope(shield=True):  # Cancelled half-way, the process would have no owner.
            process = await self._context.machine.start(self.launch.key, instance, command)
        self.replica = replace(self.replica, instance=instance, pid=process.pid, port=port)
        self._move(ProcessPhase.STARTING)
        return process

    async def _end(self, process: Process, port: int, *, was_ready: bool, only_try: bool) -> None:
        """Until nothing of the process is left, however long that takes: key and port are not free before.

        `only_try`: this worker itself ends and cannot wait; what survives is found by its next life.
        """
        if self.stopping and self._free_first and was_ready:
            await self._free(port)
        while not await process.end(self._context.timeouts.grace):
            self.stuck = f"process {process.pid} does not stop, not even when killed (a hung disk or driver?)"
            self._move(self.replica.phase, self.stuck)
            self._note("backend_stuck", pid=process.pid)
            if only_try:
                return
            await anyio.sleep(limits.BACKEND_END_AGAIN_S)
        self.stuck = ""
        self._context.ports.release(port, self._context.clock.monotonic())
        self.replica = replace(self.replica, pid=0)

    async def _free(self, port: int) -> None:
        """Those that speak HTTP have no call for it: their end is what frees their memory."""
        if self.launch.recipe.protocol is Protocol.HTTP:
            return
        self.not_freed = await self._context.backends.free(port, self.launch.recipe)
        self.freed = not self.not_freed
        if self.not_freed:
            self._note("backend_not_freed", reason=self.not_freed)

    def _move(self, phase: ProcessPhase, trouble: str = "") -> None:
        if self.stopping:
            phase = ProcessPhase.STOPPING
        if phase in (ProcessPhase.STARTING, ProcessPhase.READY):
            trouble = trouble or self._last_ending
        self._was_ever_ready = self._was_ever_ready or phase is ProcessPhase.READY
        self.replica = self.replica.moved(phase, self._context.clock.now(), trouble)
        self._announce()

    def _announce(self) -> None:
        self._moves.notify()
        self._context.changed()

    def _note(self, event: str, **more: object) -> None:
        log.warning(event, process=str(self.launch.key), backend=self.launch.backend, **more)


def _after_losing(ports: Sequence[int]) -> str:
    """How a reason begins when there were others before it."""
    if not ports:
        return ""
    return f"while it started, other programs took port {', '.join(map(str, ports))}; the last time "
