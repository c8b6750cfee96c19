"""What the console's pages decide without elements: `ui/tests`, run by the pinned node."""

import subprocess

from tools.build_console import SOURCE, node_program


def test_the_logic_of_pages() -> None:
    words = ("--disable-warning=ExperimentalWarning", "--import", "./tests/resolve.js")
    run = subprocess.run(
        [node_program(), *words, "--test", "tests/*.test.ts"], cwd=SOURCE, capture_output=True, text=True
    )
    assert run.returncode == 0, f"{run.stdout}{run.stderr}"
