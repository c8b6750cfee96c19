"""Where a node can be, by where it calls from and by what its name resolves to."""

import socket

import pytest

from remuda.host.outbound import AddressRefused, NodeResolver, far_claim, resolved

pytestmark = pytest.mark.anyio
HERE = "10.0.0.1"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "localhost", "LOCALHOST", socket.gethostname()]
)
def test_a_node_elsewhere_cannot_be_at_an_address_of_this_machine_or_its_link(host: str) -> None:
    assert "10.0.0.7" in far_claim(host, "10.0.0.7", HERE)


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "::1"),
        ("127.0.0.1", HERE),  # From this machine, by its address on the network.
        ("10.0.0.7", "10.0.0.7"),
        ("gpu-1", "10.0.0.7"),
        ("169.254.3.4", "169.254.3.4"),
        ("127.0.0.1", ""),  # Where it calls from is not known.
    ],
)
def test_a_node_can_be_where_it_calls_from(host: str, source: str) -> None:
    assert far_claim(host, source, HERE) == ""


@pytest.mark.parametrize("source", ["127.0.0.1", HERE])
def test_a_node_here_is_not_at_a_neighbours_address_on_the_link(source: str) -> None:
    assert "169.254.169.254" in far_claim("169.254.169.254", source, HERE)


async def test_what_is_written_as_an_address_is_dialled_and_so_is_this_machines_name() -> None:
    assert await resolved("127.0.0.1", 80) == ["127.0.0.1"]
    assert set(await resolved("localhost", 80)) <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize("name", ["127.1", "0x7f000001", "2130706433", "0"])
async def test_another_name_does_not_lead_to_this_machine(name: str) -> None:
    with pytest.raises(AddressRefused, match="a loopback address"):
        await resolved(name, 80)


async def test_http_sessions_to_nodes_keep_to_the_same_rules() -> None:
    resolver = NodeResolver()
    found = await resolver.resolve("localhost", 80)
    assert {one["host"] for one in found} <= {"127.0.0.1", "::1"}
    with pytest.raises(AddressRefused, match="a loopback address"):
        await resolver.resolve("2130706433", 80)
