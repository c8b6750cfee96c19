"""Which credentials are for which place, and what a credentials file may look like."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from remuda.core.errors import Misconfigured
from remuda.hubs.credentials import (
    CredentialsFile,
    RegistryKeys,
    SourceCredential,
    SourceCredentials,
    basic_header,
    entry_hint,
)
from remuda.oci.auth import NoKeys

pytestmark = pytest.mark.anyio


def found(url: str, *places: str) -> str:
    """The place whose credentials are used."""
    credentials = SourceCredentials(tuple((place, SourceCredential(username=place)) for place in places))
    credential = credentials.find(url)
    return credential.username if credential is not None else ""


@pytest.mark.parametrize(
    ("address", "table"),
    [
        ("https://huggingface.co", "huggingface.co"),
        ("https://hub.example.org:8443/hf", "hub.example.org:8443"),
        ("https://me:secret@example.org/x.gguf", "example.org"),
        ("http://127.0.0.1:28670", "http://127.0.0.1:28670"),
        ("http://nas.lan/x.gguf", "http://nas.lan"),
    ],
)
def test_the_table_that_a_hint_names_is_found(address: str, table: str) -> None:
    assert f'write ["{table}"] and below it token' in entry_hint(address)
    assert found(address, table) == table


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://example.org/a/x.gguf", "example.org"),
        ("https://example.org:8443/x.gguf", "example.org:8443"),
        ("https://example.org/a/x.gguf", "https://example.org/a"),
        ("https://example.org/a/x.gguf", "example.org/a/"),
        ("http://nas.lan/x.gguf", "http://nas.lan"),
        ("http://127.0.0.1:9000/x.gguf", "127.0.0.1:9000"),
        ("s3://models/a/x.gguf", "s3://models"),
        ("s3://models/a/x.gguf", "s3://models/a"),
    ],
)
def test_credentials_are_found_by_host_or_by_the_beginning_of_an_address(url: str, place: str) -> None:
    assert found(url, place) == place


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://example.org.evil.net/x", "example.org"),
        ("https://evil.net/example.org/x", "example.org"),
        ("https://sub.example.org/x", "example.org"),
        ("https://example.org:8443/x", "example.org"),
        ("https://example.org/ab/x", "https://example.org/a"),
        ("http://example.org/x", "example.org"),
        ("http://example.org/x", "https://example.org"),
        ("s3://models-2/x", "s3://models"),
        ("https://models/x", "s3://models"),
    ],
)
def test_no_other_place_gets_them(url: str, place: str) -> None:
    assert found(url, place) == ""


def test_of_several_the_longest_is_used() -> None:
    places = ("example.org", "https://example.org/a/b", "https://example.org/a")
    assert found("https://example.org/a/b/x", *places) == "https://example.org/a/b"
    assert found("https://example.org/a/x", *places) == "https://example.org/a"
    assert found("https://example.org/x", *places) == "example.org"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not toml", "is not TOML"),
        ('["a"]\ntokens = "hunter2"', "tokens is not known here"),
        ('token = "hunter2"', "must be an object"),
    ],
)
async def test_a_file_that_cannot_be_used_is_named_without_its_secrets(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "credentials.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(Misconfigured) as refused:
        await CredentialsFile(path).read()
    assert words in str(refused.value)
    assert str(path) in str(refused.value)
    assert "hunter2" not in str(refused.value)


async def test_a_file_need_not_exist_and_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "credentials.toml"
    file = CredentialsFile(path)
    assert await file.read() == SourceCredentials()
    path.touch(mode=0o600)
    path.write_text('["example.org"]\ntoken = "hunter2"')
    credentials = await file.read()
    assert credentials.authorization("https://example.org/x") == SecretStr("Bearer hunter2")
    assert "hunter2" not in repr(credentials)


async def test_registries_take_user_and_password_or_a_token(tmp_path: Path) -> None:
    path = tmp_path / "credentials.toml"
    path.touch(mode=0o600)
    path.write_text('["ghcr.io"]\nusername = "me"\ntoken = "a"\n["https://quay.io"]\ntoken = "b"\n')
    keys = RegistryKeys(CredentialsFile(path), NoKeys())
    first, second = await keys.find("ghcr.io"), await keys.find("quay.io")
    assert first is not None
    assert (first.username, first.password) == ("me", SecretStr("a"))
    assert second is not None
    assert second.identity_token == SecretStr("b")
    assert await keys.find("docker.io") is None


def test_a_basic_header_is_what_servers_expect() -> None:
    assert basic_header("me", SecretStr("secret")).get_secret_value() == "Basic bWU6c2VjcmV0"
