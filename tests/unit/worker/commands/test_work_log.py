"""What a worker did, and how often, can be read in its log."""

import pytest
from structlog.testing import capture_logs

from remuda.wire.backends import BackendInstall
from tests.support.commands_rig import Rig

pytestmark = pytest.mark.anyio


async def test_an_attempt_is_logged_when_it_begins_and_when_it_ends(rig: Rig) -> None:
    rig.offer("echo")
    with capture_logs() as lines:
        await rig.install(BackendInstall(backend="echo", op_id="o-1", attempt=3))
    told = [line for line in lines if line["event"].startswith("work_")]
    assert [line["event"] for line in told] == ["work_begun", "work_ended"]
    for line in told:
        assert (line["kind"], line["op"], line["attempt"], line["backend"]) == ("install", "o-1", 3, "echo")
