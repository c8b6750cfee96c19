"""Addresses and names of adopted servers, and how their condition is judged."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.servers.model import Condition, answered, check_name, missed, name_from, parse_url

NOW = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "address", "shown"),
    [
        ("http://nas:11434", "nas:11434", "http://nas:11434"),
        ("nas:11434", "nas:11434", "http://nas:11434"),
        ("https://api.example.com/v1", "api.example.com:443", "https://api.example.com"),
        ("https://router.example/api/v1/", "router.example:443", "https://router.example/api"),
        ("http://[::1]:8000/v1", "[::1]:8000", "http://[::1]:8000"),
        (" HTTP://NAS/ ", "nas:80", "http://nas"),
    ],
)
def test_an_address_is_read_as_people_write_it(written: str, address: str, shown: str) -> None:
    url = parse_url(written)
    assert (url.address, str(url)) == (address, shown)
    assert parse_url(str(url)) == url


@pytest.mark.parametrize(
    ("written", "chats"),
    [
        ("https://router.example/api/v1", "https://router.example/api/v1/chat/completions"),
        ("https://proxy.example/ollama", "https://proxy.example/ollama/v1/chat/completions"),
        ("https://cloud.example/v1beta/openai", "https://cloud.example/v1beta/openai/chat/completions"),
        ("https://cloud.example/v1beta/openai/v1", "https://cloud.example/v1beta/openai/v1/chat/completions"),
        ("https://cloud.example/api/paas/v4/", "https://cloud.example/api/paas/v4/chat/completions"),
        ("https://cloud.example/vision", "https://cloud.example/vision/v1/chat/completions"),
    ],
)
def test_a_path_with_a_version_is_whole(written: str, chats: str) -> None:
    url = parse_url(written)
    assert url.api("/v1/chat/completions") == chats
    assert parse_url(str(url)) == url


@pytest.mark.parametrize(
    "written",
    ["", "ftp://nas", "http://", "http://u:p@nas", "http://nas:99999", "http://nas/?x=1", "http://n as", "ä"],
)
def test_what_is_no_address_is_refused(written: str) -> None:
    with pytest.raises(Invalid):
        parse_url(written)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        url = parse_url(text)
    except Invalid:
        return
    assert parse_url(str(url)) == url
    check_name(name_from(url))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("http://nas.lan:11434", "nas"),
        ("https://api.openai.com/v1", "openai"),
        ("http://localhost:1234", "localhost-1234"),
        ("http://10.0.0.7:8000", "10-0-0-7-8000"),
    ],
)
def test_its_name_comes_from_its_address(written: str, name: str) -> None:
    assert name_from(parse_url(written)) == name


def test_a_slow_answer_is_no_absence_two_are() -> None:
    up = answered(Condition(), ("a",), NOW)
    late = missed(up, "too slow", NOW + timedelta(seconds=10), slow=True)
    assert late.up
    assert late.models == ("a",)
    gone = missed(late, "too slow", NOW + timedelta(seconds=20), slow=True)
    assert not gone.up
    assert gone.since == NOW + timedelta(seconds=20)
    again = missed(gone, "too slow", NOW + timedelta(seconds=30), slow=True)
    assert again.since == gone.since


def test_one_that_refuses_connections_is_absent_at_once_and_its_models_stay_known() -> None:
    up = answered(Condition(), ("a",), NOW)
    gone = missed(up, "refused", NOW, slow=False)
    assert (gone.up, gone.reason, gone.models) == (False, "refused", ("a",))
    assert answered(gone, ("b",), NOW).up
