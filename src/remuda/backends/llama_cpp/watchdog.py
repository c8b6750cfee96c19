"""Ends an engine that is stuck in one step: until then nothing is answered, and nothing can be cancelled.

A grammar can leave an engine with exponentially many ways in which a text may go on, and a check of the
grammar cannot find all such grammars. The engine looks at its queue between two steps, so whether a step
has ended is known by asking for something that goes through the queue.
"""

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import anyio
import grpc

from remuda.backends.calls import ModelNotLoaded, Refused
from remuda.backends.llama_cpp import limits
from remuda.backends.llama_cpp.connection import EngineConnection, EngineGone
from remuda.rpc.metadata import BY_ONE_OF_SEVERAL, BY_THIS_CALL, ENGINE_ENDED

_QUEUED_PATH = "/metrics"
_ADVICE = (
    "simplify the grammar: alternatives that begin alike should share that beginning, "
    "as in a ::= x (y | z) instead of a ::= x y | x z"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepLimit:
    """How much CPU time one step may take while an answer is bound by a grammar. Decoding a batch never
    takes longer than decoding its tokens one by one, so what is beyond that is the grammar's."""

    least_s: float
    token_s: float  # CPU time of one token when the model was loaded.
    slots: int
    batch: int

    def seconds(self, *, prompts: bool) -> float:
        """`prompts`: the step may have part of a prompt in it."""
        tokens = self.batch if prompts else self.slots * limits.STEP_SLACK
        return min(max(self.least_s, tokens * self.token_s), limits.SILENCE_S)


@dataclass(eq=False, slots=True)
class EngineCall:
    """A call that the engine works on."""

    bound: bool  # By a grammar: the request's, or one made from its schema or tools.
    generating: bool = False  # Past its prompt.
    left_at: float = 0.0  # When its caller left; the engine learns of that between two steps.


class Watchdog:
    """`run` watches the engine while it lives. `verdict` is empty until the engine has been ended."""

    def __init__(self, pid: int, connection: EngineConnection, limit: StepLimit) -> None:
        self._pid = pid
        self._connection = connection
        self._limit = limit
        self._works: list[EngineCall] = []
        self._left: list[EngineCall] = []
        self._began = anyio.Event()
        self._suspects: list[EngineCall] = []
        self.verdict = ""

    @contextmanager
    def working(self, *, bound: bool) -> Generator[EngineCall, None, None]:
        """One call. If the engine is ended meanwhile, the error says what that has to do with this call."""
        work = EngineCall(bound)
        self._works.append(work)
        self._began.set()
        try:
            yield work
        except EngineGone as error:
            if refusal := self._refusal(work):
                raise refusal from error
            raise
        except Refused:
            raise
        except BaseException:  # Its caller has left.
            work.left_at = anyio.current_time()
            self._left.append(work)
            raise
        finally:
            self._works.remove(work)

    async def run(self, end: Callable[[], None]) -> None:
        """`end` ends the engine. Cancel this when the engine is to be stopped."""
        while not self.verdict:
            if not (self._works or self._left):
                self._began = anyio.Event()
                await self._began.wait()
            await anyio.sleep(limits.STEP_LOOK_EVERY_S)
            began = anyio.current_time()
            # A call that comes from now on is not in the step that is waited for, and not to blame for it.
            watched = [*self._works, *self._left]
            held = await self._held_beyond(watched)
            if held:
                self._give_up(held, watched, end)
            # The engine has looked at its queue since they left: it knows.
            heard_of = began - limits.LEFT_S
            self._left = [work for work in self._left if work.left_at > heard_of]

    def _give_up(self, held: str, watched: Sequence[EngineCall], end: Callable[[], None]) -> None:
        self._suspects = [work for work in watched if work.bound]
        self.verdict = f"{held} with a grammar" if self._suspects else held
        log.error(
            "engine_ended reason=%r calls=%d with_grammar=%d left=%d",
            self.verdict,
            len(self._works),
            len(self._suspects),
            len(self._left),
        )
        end()

    async def _held_beyond(self, watched: Sequence[EngineCall]) -> str:
        """What the engine's current step has gone beyond; empty once the step is over."""
        busiest = BusiestThread(self._pid)
        beyond = ""
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                nonlocal beyond
                beyond = "" if await self._answered() else f"one step took more than {limits.ANSWER_S:.3g} s"
                tasks.cancel_scope.cancel()

            tasks.start_soon(ask)
            while True:
                await anyio.sleep(limits.STEP_LOOK_EVERY_S)
                limit_s = self._limit_s(watched)
                if busiest.seconds() > limit_s:
                    beyond = f"one step took more than {limit_s:.3g} s of CPU time"
                    tasks.cancel_scope.cancel()
        return beyond

    def _limit_s(self, watched: Sequence[EngineCall]) -> float:
        if not any(work.bound for work in watched):
            return limits.SILENCE_S
        return self._limit.seconds(prompts=not all(work.generating for work in watched))

    async def _answered(self) -> bool:
        try:
            await self._connection.get(_QUEUED_PATH)
        except TimeoutError:
            return False
        except (EngineGone, Refused):  # It ended by itself, or said something.
            return True
        return True

    def _refusal(self, work: EngineCall) -> Refused | None:
        """None: the engine was not ended by us."""
        if not self.verdict:
            return None
        if work not in self._suspects:
            return ModelNotLoaded(f"the engine was ended, because {self.verdict}")
        if len(self._suspects) == 1:
            message = (
                "the grammar of this request (its own or made of its JSON schema or tools) is too ambiguous: "
                f"{self.verdict}, and the engine had to be ended"
            )
            mark = (ENGINE_ENDED, BY_THIS_CALL)
            return Refused(grpc.StatusCode.INVALID_ARGUMENT, f"{message}; {_ADVICE}", (mark,))
        message = f"the engine was ended, because {self.verdict}; {len(self._suspects)} requests had one"
        mark = (ENGINE_ENDED, BY_ONE_OF_SEVERAL)
        return Refused(grpc.StatusCode.ABORTED, f"{message}, this one among them; {_ADVICE}", (mark,))


class BusiestThread:
    """CPU time since now, of the thread that used most. Unlike the time on the clock it does not pass while
    the machine is busy with other things, or while a model that does not fit is read from the disk."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began = anyio.current_time()
        self._before = _thread_seconds(pid)

    def seconds(self) -> float:
        now = _thread_seconds(self._pid)
        if not now:
            return anyio.current_time() - self._began
        return max(used_s - self._before.get(thread, 0.0) for thread, used_s in now.items())


def _thread_seconds(pid: int) -> Mapping[int, float]:
    """Empty where the system does not tell."""
    import psutil  # Here, for it would take as long to import as half of all the rest.

    try:
        return {one.id: one.user_time + one.system_time for one in psutil.Process(pid).threads()}
    except psutil.Error:
        return {}
