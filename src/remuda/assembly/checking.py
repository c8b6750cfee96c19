"""Builds what sees to it that replicas which answer also work."""

from functools import partial

from remuda.assembly.operations import FrontendParts
from remuda.inference.model import Upstreams
from remuda.router.live_table import Tables
from remuda.router.suspects import Suspects
from remuda.router.usage import PeerLoads
from remuda.router.work_checks import WorkChecks
from remuda.scheduler.service import Models
from remuda.scheduler.upkeep import BY


def work_checks(
    parts: FrontendParts,
    tables: Tables,
    upstreams: Upstreams,
    peers: PeerLoads,
    suspects: Suspects,
    models: Models,
) -> WorkChecks:
    return WorkChecks(
        parts.frontend,
        tables,
        upstreams,
        parts.clock,
        parts.entropy,
        in_flight=peers.everywhere,
        alive=peers.heard,
        fence=suspects.fence,
        reload=partial(models.load, by=BY),
        every_s=parts.settings.work_check.total_seconds(),
    )
