"""What a frontend does not carry with it."""

import subprocess
import sys

_LOADED = """
import sys
import remuda.assembly.frontend, remuda.assembly.serving
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_frontend_runs_without_the_grpc_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED], check=True, capture_output=True, text=True, timeout=60
    )

    assert "hpack" in done.stdout.split()
    assert not [name for name in done.stdout.split() if name.startswith("grpc")]
