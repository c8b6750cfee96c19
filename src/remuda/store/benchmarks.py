"""Results of benchmarks, in SQL: implements the port BenchmarkStore."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, Row, delete, insert, select

from remuda.scheduler.benchmarks import KEPT_PER_PLACE, Benchmark, Measured
from remuda.store.database import Database
from remuda.store.schema import benchmarks


class SqlBenchmarkStore:
    """Implements scheduler.benchmarks.BenchmarkStore. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def benchmarks(self, model: str = "") -> Sequence[Benchmark]:
        return await self._database.read(lambda c, now: _kept(c, model))

    async def keep(self, measured: Sequence[Measured], revision: str, backend: str) -> Sequence[Benchmark]:
        return await self._database.transact(lambda c, now: _keep(c, now, measured, revision, backend))


def _kept(connection: Connection, model: str) -> list[Benchmark]:
    newest_first = select(benchmarks).order_by(benchmarks.c.id.desc())
    wanted = newest_first.where(benchmarks.c.model == model) if model else newest_first
    return [_benchmark(row) for row in connection.execute(wanted)]


def _keep(
    connection: Connection, now: datetime, measured: Sequence[Measured], revision: str, backend: str
) -> list[Benchmark]:
    added = list[Benchmark]()
    for one in measured:
        statement = insert(benchmarks).values(
            model=one.model,
            node_name=one.node,
            streams=one.streams,
            requests=one.requests,
            failed=one.failed,
            prompt_tokens=one.prompt_tokens,
            completion_tokens=one.completion_tokens,
            first_token_ms=one.first_token_ms,
            first_token_p95_ms=one.first_token_p95_ms,
            tokens_per_s=one.tokens_per_s,
            prompt_tokens_per_s=one.prompt_tokens_per_s,
            revision=revision,
            backend=backend,
            measured_at=now,
        )
        row = connection.execute(statement.returning(benchmarks)).one()
        added.append(_benchmark(row))
        _forget_older(connection, one)
    return added


def _forget_older(connection: Connection, one: Measured) -> None:
    of_this_place = (
        (benchmarks.c.model == one.model)
        & (benchmarks.c.node_name == one.node)
        & (benchmarks.c.streams == one.streams)
    )
    kept = select(benchmarks.c.id).where(of_this_place).order_by(benchmarks.c.id.desc()).limit(KEPT_PER_PLACE)
    ids = list(connection.scalars(kept))
    connection.execute(delete(benchmarks).where(of_this_place, benchmarks.c.id.not_in(ids)))


def _benchmark(row: Row[tuple[object]]) -> Benchmark:
    measured = Measured(
        row.model,
        row.node_name,
        row.streams,
        row.requests,
        row.failed,
        row.prompt_tokens,
        row.completion_tokens,
        row.first_token_ms,
        row.first_token_p95_ms,
        row.tokens_per_s,
        row.prompt_tokens_per_s,
    )
    return Benchmark(row.id, measured, row.revision, row.backend, row.measured_at)
