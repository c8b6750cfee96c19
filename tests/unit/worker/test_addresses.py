"""Where a worker listens and how it is reached: the contract's rules, and ours where nobody chose."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import FrontendUnreachable, Misconfigured
from remuda.worker.addresses import (
    AddressSettings,
    Advertised,
    advertised,
    bind_host,
    chosen_base_port,
    claim,
    http_bind,
    is_loopback,
    joined,
    source_host,
    split,
)

LOCAL = "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gpu-1:50051", ("gpu-1", 50051)),
        ("gpu-1", ("gpu-1", None)),
        (":50051", ("", 50051)),
        ("gpu-1:0", ("gpu-1", None)),
        ("gpu-1:65536", ("gpu-1", None)),
        ("gpu-1:x", ("gpu-1", None)),
        ("[fd00::1]:50051", ("fd00::1", 50051)),
        ("fd00::1", ("fd00::1", None)),
        ("[fd00::1]", ("fd00::1", None)),
        ("", ("", None)),
    ],
)
def test_split(text: str, parts: tuple[str, int | None]) -> None:
    assert split(text) == parts


@given(host=st.sampled_from(["gpu-1", "10.0.0.1", "fd00::1", "::"]), port=st.integers(1, 65535))
def test_split_reads_what_joined_writes(host: str, port: int) -> None:
    assert split(joined(host, port)) == (host, port)


@pytest.mark.parametrize(
    ("addr", "serve_addr", "port"),
    [
        ("gpu-1:6000", "0.0.0.0:7000", 6000),
        ("", "0.0.0.0:7000", 7000),
        ("gpu-1:0", "0.0.0.0:7000", 7000),
        ("gpu-1:nonsense", "0.0.0.0:7000", 7000),
        ("gpu-1", "0.0.0.0:99999", None),
        ("", "", None),
    ],
)
def test_base_port_is_the_first_valid_one(addr: str, serve_addr: str, port: int | None) -> None:
    assert chosen_base_port(AddressSettings(addr=addr, serve_addr=serve_addr)) == port


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (AddressSettings(), Advertised("192.0.2.7:50051", "192.0.2.7:50050")),
        (AddressSettings(addr="gpu-1:50051"), Advertised("gpu-1:50051", "gpu-1:50050")),
        (AddressSettings(addr="gpu-1"), Advertised("gpu-1:50051", "gpu-1:50050")),
        (AddressSettings(addr="0.0.0.0:50051"), Advertised("192.0.2.7:50051", "192.0.2.7:50050")),
        (AddressSettings(addr="gpu-1:50051", advertise_addr="nat:9"), Advertised("nat:9", "nat:50050")),
        (AddressSettings(advertise_http_addr="web:80"), Advertised("192.0.2.7:50051", "web:80")),
        (AddressSettings(advertise_addr="[fd00::1]:9"), Advertised("[fd00::1]:9", "[fd00::1]:50050")),
    ],
)
def test_what_is_advertised(settings: AddressSettings, expected: Advertised) -> None:
    assert advertised(settings, 50051, 50050, "192.0.2.7") == expected


def test_an_ipv6_source_is_advertised_in_brackets() -> None:
    assert advertised(AddressSettings(), 50051, 50050, "fd00::7").address == "[fd00::7]:50051"


@pytest.mark.parametrize(
    ("frontend", "bound"),
    [
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.1.2.3", "127.0.0.1"),
        ("::1", "::1"),
        ("frontend.example", "0.0.0.0"),
        ("192.0.2.1", "0.0.0.0"),
        ("fd00::1", "::"),
    ],
)
def test_only_a_frontend_elsewhere_opens_the_worker_to_the_network(frontend: str, bound: str) -> None:
    assert bind_host(frontend) == bound
    assert is_loopback(bound) == is_loopback(frontend)


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """Two neighbouring ports that were free a moment ago; the second is the base port."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as lower:
            port = lower.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except OSError:
                continue
        yield port, port + 1
        return


def test_the_http_server_is_one_below_the_chosen_base_port(ports: tuple[int, int]) -> None:
    listening = claim(AddressSettings(addr=f"127.0.0.1:{ports[1]}"), LOCAL)
    with closing(listening.socket):
        assert (listening.http_port, listening.base_port) == ports


@pytest.mark.parametrize(
    ("settings", "bound"),
    [
        (AddressSettings(), "127.0.0.1"),
        (AddressSettings(addr="localhost:6000"), "127.0.0.1"),
        (AddressSettings(addr="192.0.2.7:6000"), "0.0.0.0"),
        (AddressSettings(addr="0.0.0.0:6000"), "0.0.0.0"),
        (AddressSettings(advertise_addr="gpu-1:6000"), "0.0.0.0"),
        (AddressSettings(advertise_http_addr="gpu-1:6000"), "0.0.0.0"),
        (AddressSettings(addr="192.0.2.7:6000", advertise_http_addr="127.0.0.1:80"), "127.0.0.1"),
    ],
)
def test_the_http_server_listens_where_it_is_advertised(settings: AddressSettings, bound: str) -> None:
    assert http_bind(settings, LOCAL) == bound


def test_the_http_server_moves_with_the_address(ports: tuple[int, int]) -> None:
    listening = claim(AddressSettings(addr=f"192.0.2.7:{ports[1]}"), LOCAL)
    with closing(listening.socket):
        assert listening.socket.getsockname() == ("0.0.0.0", ports[0])


def test_the_http_server_goes_where_it_is_told(ports: tuple[int, int]) -> None:
    listening = claim(AddressSettings(http_addr=f"127.0.0.1:{ports[0]}"), LOCAL)
    with closing(listening.socket):
        assert listening.http_port == ports[0]
        assert listening.base_port % 100 == 51


def test_workers_that_chose_nothing_step_aside_for_each_other() -> None:
    with ExitStack() as stack:
        claimed = [claim(AddressSettings(), LOCAL) for _ in range(3)]
        for one in claimed:
            stack.callback(one.socket.close)
        assert len({one.base_port for one in claimed}) == 3
        assert all(one.http_port == one.base_port - 1 for one in claimed)
        assert all((one.base_port - 50051) % 100 == 0 for one in claimed)


@pytest.mark.parametrize(
    ("setting", "field", "offset"),
    [("--addr", "addr", 1), ("--serve-addr", "serve_addr", 1), ("--http-addr", "http_addr", 0)],
)
def test_a_chosen_port_that_is_taken_is_named(
    ports: tuple[int, int], setting: str, field: str, offset: int
) -> None:
    settings = AddressSettings(**{field: f"127.0.0.1:{ports[offset]}"})
    with socket.create_server(("127.0.0.1", ports[0])), pytest.raises(Misconfigured) as refusal:
        claim(settings, LOCAL)
    assert str(ports[0]) in refusal.value.message
    assert setting in refusal.value.hint


def test_an_http_address_without_a_port_is_refused() -> None:
    with pytest.raises(Misconfigured, match="--http-addr"):
        claim(AddressSettings(http_addr="127.0.0.1"), LOCAL)


@pytest.mark.anyio
async def test_the_source_of_a_local_frontend_is_loopback() -> None:
    assert await source_host("http://localhost:1", socket.AF_INET) == "127.0.0.1"


@pytest.mark.anyio
async def test_a_name_nobody_knows_is_trouble_that_may_pass() -> None:
    with pytest.raises(FrontendUnreachable, match=r"frontend\.invalid"):
        await source_host("http://frontend.invalid:8080", socket.AF_INET)
