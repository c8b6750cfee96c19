"""`remuda frontend`: serve until told to stop."""

from functools import partial

from remuda.assembly.frontend import admission_policy, running_frontend
from remuda.assembly.running import Stop, log_as, run_until_signal, settle
from remuda.assembly.settings import FrontendSettings
from remuda.cli.banner import show_frontend
from remuda.core.settings import ResolvedSettings


def run(resolved: ResolvedSettings[FrontendSettings]) -> int:
    log_as(resolved)
    return run_until_signal(partial(_serve, resolved.values))


async def _serve(settings: FrontendSettings, stop: Stop) -> int:
    async with running_frontend(settings, admission_policy(settings, otherwise=False)) as frontend:
        show_frontend(frontend, settings)
        settle()
        await stop.wait()
    return 0
