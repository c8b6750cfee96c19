"""What a process does not carry with it: starting one costs little but imports."""

import subprocess
import sys


def _loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    return set(done.stdout.split())


def test_frontend_runs_without_the_grpc_library() -> None:
    loaded = _loaded_by("remuda.assembly.frontend")

    assert "hpack" in loaded
    assert not [name for name in loaded if name.startswith("grpc")]


def test_worker_runs_without_what_only_frontends_need() -> None:
    loaded = _loaded_by("remuda.assembly.worker")

    assert {
        "fastapi",
        "sqlalchemy",
        "prometheus_client",
        "remuda.bus.server",
        "remuda.fleet.health",
    }.isdisjoint(loaded)
