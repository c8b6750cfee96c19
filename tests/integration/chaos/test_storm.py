"""Everything is killed, frozen and cut off while backends come and go; afterwards all is over, and true."""

from pathlib import Path

import pytest

from tests.integration.chaos.storm import storm

SEED = 1


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_storm_leaves_every_operation_over_and_every_disk_as_shown(tmp_path: Path) -> None:
    said: list[str] = []

    def say(line: str) -> None:  # Shown when it fails, with the seed.
        print(line)
        said.append(line)

    storm(tmp_path, seed=SEED, span_s=25, workers=2, say=say)
    assert any("all was over" in line for line in said)
