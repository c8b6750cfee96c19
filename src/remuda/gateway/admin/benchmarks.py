"""Measured speeds of models: reported, kept and listed."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from remuda.core.errors import Invalid
from remuda.core.hints import did_you_mean
from remuda.gateway.guards import require_admin
from remuda.gateway.messages import KNOWN_FILTERS, answer, gives, read_known, takes
from remuda.gateway.services import Services, Svc
from remuda.scheduler.benchmarks import Benchmark, Measured
from remuda.wire.benchmarks import BenchmarkReport, BenchmarkView, BenchmarkViews

routes = APIRouter(prefix="/api/benchmarks", tags=["models"], dependencies=[Depends(require_admin)])


@routes.get("", responses=gives(BenchmarkViews, 400, 401), dependencies=[KNOWN_FILTERS])
async def list_benchmarks(svc: Svc, model: Annotated[str, Query()] = "") -> Response:
    """What was measured of one model, or of all; the newest first."""
    kept = await svc.serving.benchmarks.benchmarks(model)
    return answer(BenchmarkViews(benchmarks=tuple(map(_view, kept))))


@routes.post(
    "",
    status_code=201,
    openapi_extra=takes(BenchmarkReport),
    responses=gives(BenchmarkViews, 400, 401, 404, status=201),
)
async def keep_benchmarks(request: Request, svc: Svc) -> Response:
    """Keep what was measured of a model. The newest twenty of each node and number of streams stay."""
    report = await read_known(request, BenchmarkReport)
    config = (await svc.serving.models.get(report.model)).config
    await _check_nodes({one.node for one in report.results if one.node}, svc)
    measured = [Measured(model=config.id, **one.model_dump()) for one in report.results]
    kept = await svc.serving.benchmarks.keep(measured, config.revision, config.backend)
    return answer(BenchmarkViews(benchmarks=tuple(map(_view, kept))), 201)


async def _check_nodes(named: set[str], svc: Services) -> None:
    known = {standing.node.name for standing in await svc.registry.standings()}
    for name in sorted(named - known):
        raise Invalid(f"there is no node {name!r}", hint=did_you_mean(name, known, "see `remuda nodes`"))


def _view(one: Benchmark) -> BenchmarkView:
    return BenchmarkView(
        id=one.id, revision=one.revision, backend=one.backend, at=one.at, **asdict(one.measured)
    )
