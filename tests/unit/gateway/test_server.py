"""Which address a request is taken to come from."""

import pytest

from remuda.gateway.server import TrustedProxies


@pytest.mark.parametrize(
    ("trusted", "client", "forwarded", "source"),
    [
        ([], "10.0.0.1", ["6.6.6.6"], "10.0.0.1"),
        (["10.0.0.2"], "10.0.0.1", ["6.6.6.6"], "10.0.0.1"),
        (["10.0.0.1"], "10.0.0.1", ["6.6.6.6, 10.3.3.3"], "10.3.3.3"),
        (["10.0.0.0/24"], "10.0.0.1", ["6.6.6.6", "10.3.3.3,10.0.0.9"], "10.3.3.3"),
        (["10.0.0.1"], "10.0.0.1", [], "10.0.0.1"),
        (["10.0.0.1"], "10.0.0.1", ["nonsense"], "10.0.0.1"),
        (["10.0.0.1"], "10.0.0.1", ["6.6.6.6, unknown"], "10.0.0.1"),
        (["10.0.0.1"], "10.0.0.1", ["10.3.3.3:4711"], "10.3.3.3"),
        (["10.0.0.1"], "10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        (["10.0.0.1"], "::ffff:10.0.0.1", ["::ffff:10.3.3.3"], "10.3.3.3"),
        (["fd00::/8"], "fd00::1", ["2001:DB8::1"], "2001:db8::1"),
        ([], "", ["6.6.6.6"], ""),
    ],
)
def test_forwarded_addresses_are_believed_of_trusted_proxies_only(
    trusted: list[str], client: str, forwarded: list[str], source: str
) -> None:
    assert TrustedProxies.of(trusted).source(client, forwarded) == source
