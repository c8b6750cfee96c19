"""The bench of gateways still runs: a whole frontend, with a mock replica of each protocol."""

import json
import subprocess
import sys

import pytest

BENCH_S = 120


@pytest.mark.long
def test_bench_of_gateways_measures_whole_frontends() -> None:
    ours = ("remuda-http", "remuda-grpc")
    command = [sys.executable, "-m", "bench.gateway", "--quick", "--json"]
    run = subprocess.run(
        [*command, *(word for name in ours for word in ("--only", name))],
        capture_output=True,
        text=True,
        timeout=BENCH_S,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    gateways = json.loads(run.stdout)["gateways"]
    for name in ours:
        costs = [gateways[name][key] for key in ("request_us", "token_us", "p50_us", "rest_mb", "after_mb")]
        assert all(cost > 0 for cost in costs), gateways[name]
