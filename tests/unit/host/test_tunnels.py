"""Which servers are asked through a proxy, and by what address of it."""

import pytest

from remuda.host.tunnels import Proxy, ProxyFailed, proxy_to


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("no_proxy", "NO_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("setting", "proxy"),
    [
        ("http://proxy.lan:3128", Proxy("proxy.lan", 3128)),
        ("proxy.lan", Proxy("proxy.lan", 8080)),
        ("http://we:a%40b@proxy.lan:3128", Proxy("proxy.lan", 3128, "d2U6YUBi")),
    ],
)
def test_the_environment_names_the_proxy(environment: pytest.MonkeyPatch, setting: str, proxy: Proxy) -> None:
    environment.setenv("HTTPS_PROXY", setting)
    assert proxy_to("api.example.com") == proxy


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "api.lan", "deep.example.com"])
def test_this_machine_and_what_is_excepted_are_asked_directly(
    environment: pytest.MonkeyPatch, host: str
) -> None:
    environment.setenv("HTTPS_PROXY", "http://proxy.lan:3128")
    environment.setenv("NO_PROXY", "api.lan,.example.com")
    assert proxy_to(host) is None


@pytest.mark.parametrize("setting", ["socks5://proxy:1080", "https://proxy", "http://", "http://a:99999"])
def test_what_is_no_proxy_that_can_be_used_is_refused_with_the_reason(
    environment: pytest.MonkeyPatch, setting: str
) -> None:
    environment.setenv("HTTPS_PROXY", setting)
    with pytest.raises(ProxyFailed, match="HTTPS_PROXY"):
        proxy_to("api.example.com")
