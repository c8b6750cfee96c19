"""Which addresses others may make us connect to."""

import pytest

from remuda.core.reach import AddressRange, host_and_port, numeric_alias, range_of, refused


@pytest.mark.parametrize(
    ("address", "lies"),
    [
        ("127.0.0.1", AddressRange.LOOPBACK),
        ("127.8.9.1", AddressRange.LOOPBACK),
        ("::1", AddressRange.LOOPBACK),
        ("[::1]", AddressRange.LOOPBACK),
        ("0.0.0.0", AddressRange.LOOPBACK),
        ("0.1.2.3", AddressRange.LOOPBACK),
        ("::", AddressRange.LOOPBACK),
        ("::ffff:127.0.0.1", AddressRange.LOOPBACK),
        ("64:ff9b::7f00:1", AddressRange.LOOPBACK),
        ("2002:7f00:1::", AddressRange.LOOPBACK),
        ("169.254.169.254", AddressRange.LINK_LOCAL),
        ("::ffff:169.254.169.254", AddressRange.LINK_LOCAL),
        ("fe80::1%eth0", AddressRange.LINK_LOCAL),
        ("224.0.0.1", AddressRange.NOWHERE),
        ("255.255.255.255", AddressRange.NOWHERE),
        ("ff02::1", AddressRange.NOWHERE),
        ("localhost", AddressRange.NOWHERE),
        ("", AddressRange.NOWHERE),
        ("10.0.0.7", AddressRange.ORDINARY),
        ("192.168.1.7", AddressRange.ORDINARY),
        ("100.64.0.1", AddressRange.ORDINARY),
        ("93.184.215.14", AddressRange.ORDINARY),
        ("fd00::7", AddressRange.ORDINARY),
    ],
)
def test_where_an_address_lies(address: str, lies: AddressRange) -> None:
    assert range_of(address) is lies


def test_such_an_address_is_dialled_only_for_those_who_are_there_too() -> None:
    assert "127.0.0.1, a loopback address" in refused("127.0.0.1")
    assert refused("127.0.0.1", AddressRange.LOOPBACK) == ""
    assert "link-local" in refused("169.254.169.254", AddressRange.LOOPBACK)
    assert refused("10.0.0.7", AddressRange.LOOPBACK) == ""
    assert "reserved" in refused("224.0.0.1", AddressRange.NOWHERE)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("gpu-1:50051", ("gpu-1", 50051)),
        ("10.0.0.7:1", ("10.0.0.7", 1)),
        ("[fd00::7]:80", ("fd00::7", 80)),
        ("fd00::7:80", ("fd00::7", 80)),
        ("[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
    ],
)
def test_an_address_has_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    assert host_and_port(address) == parts


@pytest.mark.parametrize(
    "address",
    [
        *("", "host", "host:", ":80", "host:0", "host:65536", "host:port", "host:+80", "host:\u0668\u0660"),
        *("name@127.0.0.1:80", "127.0.0.1:80#:1", "127.0.0.1/:80", "127.0.0.1:80/x:1", "a\\b:80", "a?:80"),
        *("[127.0.0.1]:80", "[[::1]]:80", "[::1:80", "::1]:80", "a:b:80", "a b:80", "127.0.0\t.1:80"),
    ],
)
def test_what_different_parsers_read_differently_is_no_address(address: str) -> None:
    assert host_and_port(address) is None


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("2130706433", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("127.0.0.1", ""),
        ("registry.example", ""),
        ("99999999999", ""),
    ],
)
def test_an_address_in_an_unusual_form_is_named(host: str, address: str) -> None:
    assert numeric_alias(host) == address
