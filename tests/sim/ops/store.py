"""A frontend's way to the database: the real statements, behind a connection that fails at either end. After
each transaction the claims are looked at."""

import math
from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio import CapacityLimiter
from anyio.lowlevel import checkpoint
from sqlalchemy import Engine

from remuda.core.errors import StoreUnusable
from remuda.store.connections import unusable
from remuda.store.database import Transaction, _Call
from tests.sim.chance import Dice
from tests.sim.ops.world import World
from tests.support.clocks import elapsed_s
from tests.support.inline_database import InlineDatabase

T = TypeVar("T")


class DatabaseOfFrontend(InlineDatabase):
    """`die` ends the frontend's process at the next await."""

    def __init__(self, world: World, dice: Dice, die: Callable[[str], None]) -> None:
        super().__init__(world.tables.connections)
        self.cut = False
        self.failed_s = -math.inf  # When it could last not be reached.
        self._world = world
        self._dice = dice
        self._die = die

    async def travel(self) -> None:
        await anyio.sleep(self._dice.between(0.001, self._world.pace.store_most_s))
        if self.cut or not self._world.store_up:
            raise self._trouble()
        if self._dice.chance(self._world.weather.store_fails):
            self._world.trace.fault("store_failed")
            raise self._trouble()

    async def _run(self, engine: Engine, limiter: CapacityLimiter, work: Transaction[T], limit_s: float) -> T:
        await self.travel()
        if engine is self._connections.reading:
            result = self._world.tables.answers.of(work, lambda: self._run_in_thread(engine, work, _Call()))
        else:
            # Committed before anybody else runs.
            result = self._world.tables.answers.written(lambda: self._run_in_thread(engine, work, _Call()))
            self._world.claims.after_write()
            self._meet_trouble()
        await checkpoint()  # Whoever dies here dies with the change made and nobody told.
        return result

    def _meet_trouble(self) -> None:
        weather = self._world.weather
        if self._dice.chance(weather.frontend_dies):
            self._die("after a commit")
        elif self._dice.chance(weather.store_answer_lost):
            self._world.trace.fault("store_answer_lost")
            raise self._trouble()

    def _trouble(self) -> StoreUnusable:
        self.failed_s = elapsed_s()
        return unusable(self.name, "it cannot be reached")
