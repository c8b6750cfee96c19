"""Signed addresses of model files: what they grant, and that nothing else does."""

from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Forbidden, RemudaError
from remuda.core.ids import NodeId
from remuda.wire.model_file_urls import FRONTEND_PATH, WORKER_PATH, FileGrant, granted, signed_path

GRANT = FileGrant("qwen/q4 model.gguf", 42, "ab" * 32, NodeId("n-1"), 1000)


def opened(address: str, key: str = "key", now_s: float = 0, prefix: str = FRONTEND_PATH) -> FileGrant:
    parts = urlsplit(address)
    return granted(prefix, key, parts.path, parts.query, now_s)


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.integers(0, 10**15))
def test_signed_address_grants_what_it_was_signed_for(path: str, size: int) -> None:
    grant = replace(GRANT, path=path, size=size)
    assert opened(signed_path(FRONTEND_PATH, "key", grant), now_s=999) == grant


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("q4%20model", "q8%20model"),
        ("size=42", "size=43"),
        ("ab" * 32, "cd" * 32),
        ("node=n-1", "node=n-2"),
        ("expires=1000", "expires=9999"),
        ("&signature=", "&signature=0"),
        ("signature=", "other="),
    ],
)
def test_address_that_was_changed_grants_nothing(old: str, new: str) -> None:
    address = signed_path(FRONTEND_PATH, "key", GRANT)
    assert old in address
    with pytest.raises(Forbidden):
        opened(address.replace(old, new))


def test_address_is_of_no_use_after_its_time_or_with_another_key_or_none() -> None:
    address = signed_path(FRONTEND_PATH, "key", GRANT)
    with pytest.raises(Forbidden, match="expired"):
        opened(address, now_s=1000)
    with pytest.raises(Forbidden, match="signature"):
        opened(address, key="another")
    with pytest.raises(Forbidden, match="signature"):
        opened(signed_path(WORKER_PATH, "", GRANT), key="", prefix=WORKER_PATH)


@given(st.text(), st.text())
def test_any_other_address_is_refused(path: str, query: str) -> None:
    with pytest.raises(RemudaError):
        granted(FRONTEND_PATH, "key", path, query, 0)
