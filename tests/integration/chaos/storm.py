"""A fleet, an admin and bad weather, for a while; then the verdict."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.integration.chaos.admin import Admin
from tests.integration.chaos.corral import corral
from tests.integration.chaos.verdict import Verdict, all_end
from tests.integration.chaos.weather import Weather

_PULL_BYTES_PER_S = 150_000.0  # So slow that faults come amid downloads.


def storm(folder: Path, *, seed: int, span_s: float, workers: int, say: Callable[[str], None]) -> None:
    """AssertionError when something that must hold does not. The same seed wishes and strikes alike."""
    say(f"seed {seed}, {workers} workers, {span_s:.0f} s")
    with corral(folder, workers) as fleet, ThreadPoolExecutor(1) as aside:
        began_s = time.monotonic()

        def told(what: str) -> None:
            say(f"{time.monotonic() - began_s:6.1f} s  {what}")

        admin, weather = Admin(fleet, seed, told), Weather(fleet, seed + 1, told)
        fleet.registry_link.thin(_PULL_BYTES_PER_S)
        admin.begin()
        wishing = aside.submit(admin.wish_for, span_s)
        weather.blow(span_s)
        wishing.result()
        told("the weather is calm, and every node is healthy")
        admin.settle()
        verdict = Verdict(fleet)
        verdict.all()
        assert not admin.defects, admin.defects
        told(f"all was over after {verdict.settled_after_s:.1f} s more")
        say(f"operations: {len(verdict.operations)}; steps: {dict(sorted(verdict.states().items()))}")
        say(f"answers by status: {dict(sorted(admin.answers.items()))}")
        say(f"most attempts of a step: {verdict.attempts_max()}")
        say(f"faults: {len(weather.struck)}, of {len(set(weather.struck))} kinds")
        all_end(fleet)
