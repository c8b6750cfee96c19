"""Commands at work in a folder of the test's own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.commands_rig import Rig, rigged


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged(tmp_path) as made:
        yield made
