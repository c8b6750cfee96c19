"""Addresses, logins and TLS files: refused in plain words, never with the secret in them."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from remuda.bus.auth import (
    Anonymous,
    BusToken,
    TlsFiles,
    UserJwt,
    UserPassword,
    anonymous,
    creds_file,
    mask_url,
    parse_servers,
)
from remuda.core.errors import Misconfigured


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("nats://host:4222", "nats://host:4222"),
        ("nats://user:pw@host:4222", "nats://***@host:4222"),
        ("tls://token@host", "tls://***@host"),
        ("user:pw@host", "***@host"),
        ("nats://u:p@a,nats://u:p@b", "nats://***@a,nats://***@b"),
        ("nats://u:p@ss@host", "nats://***@host"),
        ("nats://u:p,w/x@host", "nats://***@host"),
    ],
)
def test_credentials_in_a_url_are_hidden(url: str, masked: str) -> None:
    assert mask_url(url) == masked


def test_a_url_gives_up_its_credentials_and_gains_its_port() -> None:
    servers = parse_servers("nats://me:p%40ss@one, two:5000")
    assert servers.urls == ("nats://one:4222", "nats://two:5000")
    assert servers.login == UserPassword("me", SecretStr("p@ss"))
    assert not servers.tls


def test_a_lone_user_in_a_url_is_a_token() -> None:
    assert parse_servers("tls://abc@host").login == BusToken(SecretStr("abc"))


def test_a_tls_address_demands_tls() -> None:
    assert parse_servers("tls://host").tls


@pytest.mark.parametrize(
    "text", ["", "http://host", "nats://", "nats://host:port", "nats://me:hunter,2@host"]
)
def test_what_is_no_bus_address_is_refused_without_repeating_secrets(text: str) -> None:
    with pytest.raises(Misconfigured, match="is not a bus address") as refused:
        parse_servers(text)
    assert "hunter" not in str(refused.value)


@pytest.mark.parametrize(("jwt", "seed", "missing"), [("x", "", "seed"), ("", "x", "JWT"), ("", "", "JWT")])
def test_half_a_login_is_refused(jwt: str, seed: str, missing: str) -> None:
    with pytest.raises(Misconfigured, match=f"the bus user's {missing} is missing"):
        UserJwt(jwt, SecretStr(seed))


def test_without_credentials_one_is_anonymous() -> None:
    assert anonymous() == Anonymous()


@pytest.mark.parametrize("text", ["", "-----BEGIN NATS USER JWT-----\nabc\n------END NATS USER JWT------\n"])
def test_a_file_without_a_whole_login_is_refused_at_once(tmp_path: Path, text: str) -> None:
    file = tmp_path / "user.creds"
    file.write_text(text)
    with pytest.raises(Misconfigured, match="not a NATS credentials file"):
        creds_file(file)


def test_a_missing_credentials_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="cannot be read"):
        creds_file(tmp_path / "none")


@pytest.mark.parametrize(
    ("files", "missing"),
    [({"cert": Path("c")}, "key"), ({"key": Path("k")}, "certificate")],
)
def test_certificate_and_key_only_go_together(files: dict[str, Path], missing: str) -> None:
    with pytest.raises(Misconfigured, match=f"the bus client {missing} is missing"):
        TlsFiles(**files)


def test_unusable_tls_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(Misconfigured, match=r"ca\.pem"):
        TlsFiles(ca=tmp_path / "ca.pem").context()
