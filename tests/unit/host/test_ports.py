"""Ports: claimed for good, refused in words a person can act on."""

import os
import socket
import sys

import pytest

from remuda.core.errors import Misconfigured
from remuda.host.ports import free_port, listen, listeners, sockets_of


def test_the_socket_accepts_connections_at_once() -> None:
    with (
        listen("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname(), timeout=5) as client,
    ):
        assert client.getpeername() == listening.getsockname()


def test_a_port_in_use_is_refused_naming_the_setting() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(Misconfigured) as refused:
            listen("127.0.0.1", port, setting="--nats-port")
    assert str(refused.value) == f"port {port} on 127.0.0.1 is in use (choose another with --nats-port)"


def test_a_foreign_address_is_refused() -> None:
    with pytest.raises(Misconfigured, match=r"192\.0\.2\.1 is not an address of this machine"):
        listen("192.0.2.1", 0)


def test_a_number_that_is_no_port_is_refused() -> None:
    with pytest.raises(Misconfigured, match="70000 is not a port number"):
        listen("127.0.0.1", 70_000)


def test_the_first_free_preference_wins() -> None:
    with listen("127.0.0.1", 0) as taken:
        free = free_port("127.0.0.1")
        assert free_port("127.0.0.1", [taken.getsockname()[1], free]) == free


def test_without_a_free_preference_the_system_picks() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert free_port("127.0.0.1", [port]) not in (0, port)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who listens")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
def test_who_listens_is_told_by_sockets_that_their_process_has(host: str) -> None:
    with listen(host, 0) as listening:
        port = listening.getsockname()[1]
        ours = frozenset({os.fstat(listening.fileno()).st_ino})
        # Others may have the same port at another address of this machine.
        assert (listeners(port) or frozenset()) & sockets_of(os.getpid()) == ours
    assert not ours & (listeners(port) or frozenset())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who listens")
def test_who_is_connected_or_listens_on_another_address_does_not_count() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # Nothing else can listen there, nor on all addresses.
        port = held.getsockname()[1]
        with listen("127.0.0.2", port), socket.create_connection(("127.0.0.2", port), timeout=5):
            assert listeners(port) == frozenset()


def test_a_process_that_is_gone_has_no_sockets() -> None:
    assert sockets_of(1 << 30) == frozenset()
