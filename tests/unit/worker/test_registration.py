"""A frontend that does not answer is complained about when that begins, and again while it lasts."""

import anyio
from structlog.testing import capture_logs

from remuda.core.entropy import SeededEntropy
from remuda.core.errors import FrontendUnreachable
from remuda.wire.nodes import RegisterReply, RegisterRequest
from remuda.worker.enrolment import BusPolicy
from remuda.worker.registration import Registration
from tests.support.clocks import HostClock, elapsed_s
from tests.support.virtual_loop import run_virtually
from tests.unit.worker.test_departure import Said


class Absent(Said):
    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def register(self, request: RegisterRequest) -> RegisterReply:
        self.asked += 1
        raise FrontendUnreachable("nothing listens there" if elapsed_s() < 600 else "unknown host")


async def _myself() -> RegisterRequest:
    return RegisterRequest(name="gpu-1", address="127.0.0.1:50051")


def test_a_lasting_trouble_is_logged_every_minute_or_so() -> None:
    frontend = Absent()

    async def twenty_minutes() -> None:
        registration = Registration(
            frontend, _myself, BusPolicy(), clock=HostClock(), entropy=SeededEntropy(1)
        )
        with anyio.move_on_after(1200):
            await registration.run()

    with capture_logs() as logged:
        run_virtually(twenty_minutes)

    reasons = [line["reason"] for line in logged if line["event"] == "registration_failed"]
    assert reasons[0] == "nothing listens there"
    assert 7 <= reasons.count("nothing listens there") <= 11
    assert 7 <= reasons.count("unknown host") <= 11
    assert frontend.asked > 2 * len(reasons)
