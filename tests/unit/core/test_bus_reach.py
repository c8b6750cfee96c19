"""What is said of a bus that a worker cannot connect to, on its machine and on the frontend's."""

import pytest

from remuda.core.bus_reach import UnreachedBus, seen_from_frontend

BUS = "nats://10.77.0.1:4222"
HERE = "10.77.0.1"


@pytest.mark.parametrize("why", ["connection refused", "no answer", "no answer yet", "no route to host"])
def test_a_frontend_whose_bus_runs_names_the_port_to_open_on_its_machine(why: str) -> None:
    unreached = UnreachedBus.of(BUS, why)
    assert str(unreached) == f"cannot connect to the bus at 10.77.0.1:4222 ({why})"
    assert seen_from_frontend("in whatever words", unreached, BUS, HERE) == (
        f"cannot connect to the bus at 10.77.0.1:4222 ({why}); "
        "the bus runs: open port 4222 on the frontend's machine (firewall)"
    )


def test_a_bus_on_another_machine_is_named() -> None:
    unreached = UnreachedBus.of(BUS, "no answer")
    seen = seen_from_frontend(str(unreached), unreached, "nats://user:secret@10.77.0.1:4222", "10.77.0.9")
    assert seen.endswith("; the bus runs: open port 4222 on 10.77.0.1 (firewall)")


@pytest.mark.parametrize(
    ("unreached", "bus_url"),
    [
        (UnreachedBus.of("nats://10.77.0.5:4222", "no answer"), BUS),
        (UnreachedBus.of("nats://a:4222, nats://b:4222", "no answer"), "nats://a:4222,nats://b:4222"),
        (UnreachedBus.of(BUS, "no answer"), ""),
        (None, BUS),
    ],
)
def test_what_a_frontend_does_not_know_better_is_left_as_the_worker_says_it(
    unreached: UnreachedBus | None, bus_url: str
) -> None:
    said = f"cannot connect to the bus at {HERE}:4222 (no answer); check it"
    assert seen_from_frontend(said, unreached, bus_url, HERE) == said
