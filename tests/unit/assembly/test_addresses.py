"""Which of its addresses a machine without a default route tells other machines."""

import pytest

from remuda.assembly.addresses import lan_address


@pytest.mark.parametrize(
    ("addresses", "told"),
    [
        ({"lo": ["127.0.0.1"], "eth0": ["192.168.7.2"]}, "192.168.7.2"),
        ({"docker0": ["172.17.0.1"], "eth0": ["10.0.0.5"]}, "10.0.0.5"),
        ({"docker0": ["172.17.0.1"]}, "172.17.0.1"),
        ({"eth0": ["5.9.0.1"], "eth1": ["10.0.0.5"]}, "10.0.0.5"),
        ({"eth0": ["169.254.3.4"], "lo": ["127.0.0.1"]}, ""),
        ({}, ""),
    ],
)
def test_a_real_network_comes_before_others(addresses: dict[str, list[str]], told: str) -> None:
    assert lan_address(addresses) == told
