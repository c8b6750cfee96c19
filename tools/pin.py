"""Write every version this project was tested with, transitive ones too, into pyproject.toml.

A lock file names package hosts, so it is not committed; constraints give the same pins without them.
Run `uv run --no-project python tools/pin.py` (add `--upgrade` to move to the newest versions).
"""

import json
import re
import subprocess
import sys
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
BLOCK = re.compile(r"^constraint-dependencies = \[.*?\]$", re.MULTILINE | re.DOTALL)


def write_constraints(pins: list[str]) -> None:
    lines = "".join(f"    {json.dumps(pin)},\n" for pin in pins)
    block = f"constraint-dependencies = [\n{lines}]" if pins else "constraint-dependencies = []"
    text, count = BLOCK.subn(lambda _: block, PYPROJECT.read_text())
    assert count == 1, "pyproject.toml must hold exactly one constraint-dependencies list"
    PYPROJECT.write_text(text)


def resolved_pins() -> list[str]:
    subprocess.run(["uv", "lock", "--quiet"], cwd=PYPROJECT.parent, check=True)
    export = ["uv", "export", "--frozen", "--all-groups", "--no-hashes", "--no-annotate", "--no-header"]
    done = subprocess.run(
        [*export, "--no-emit-project"], cwd=PYPROJECT.parent, check=True, capture_output=True, text=True
    )
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def main() -> None:
    if "--upgrade" in sys.argv[1:]:
        write_constraints([])
        (PYPROJECT.parent / "uv.lock").unlink(missing_ok=True)
    pins = resolved_pins()
    write_constraints(pins)
    print(f"pinned {len(pins)} packages")


if __name__ == "__main__":
    main()
