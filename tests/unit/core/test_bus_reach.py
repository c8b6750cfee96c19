"""What is said of a bus that a worker cannot connect to, on its machine and on the frontend's."""

import pytest

from remuda.core.bus_reach import cannot_connect, seen_from_frontend

BUS = "nats://10.77.0.1:4222"
HERE = "10.77.0.1"


@pytest.mark.parametrize("why", ["connection refused", "no answer", "no answer yet", "no route to host"])
def test_a_frontend_whose_bus_runs_names_the_port_to_open_on_its_machine(why: str) -> None:
    reason = cannot_connect(BUS, why, "check that it runs")
    assert reason == f"cannot connect to the bus at 10.77.0.1:4222 ({why}); check that it runs"
    assert seen_from_frontend(reason, BUS, HERE) == (
        f"cannot connect to the bus at 10.77.0.1:4222 ({why}); "
        "the bus runs: open port 4222 on the frontend's machine (firewall)"
    )


def test_a_bus_on_another_machine_is_named() -> None:
    reason = cannot_connect(BUS, "no answer", "check it")
    seen = seen_from_frontend(reason, "nats://user:secret@10.77.0.1:4222", "10.77.0.9")
    assert seen.endswith("; the bus runs: open port 4222 on 10.77.0.1 (firewall)")


@pytest.mark.parametrize(
    ("reason", "bus_url"),
    [
        (cannot_connect("nats://10.77.0.5:4222", "no answer", "check it"), BUS),
        (
            cannot_connect("nats://a:4222, nats://b:4222", "no answer", "check it"),
            "nats://a:4222,nats://b:4222",
        ),
        (cannot_connect(BUS, "no answer", "check it"), ""),
        ("nothing listens at nats://10.77.0.1:4222; check that it runs", BUS),
        ("the subscription is not confirmed yet", BUS),
    ],
)
def test_what_a_frontend_does_not_know_better_is_left_as_the_worker_says_it(
    reason: str, bus_url: str
) -> None:
    assert seen_from_frontend(reason, bus_url, HERE) == reason
