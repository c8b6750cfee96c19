"""Parts of files, as HTTP asks for them."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.host.file_ranges import send_file, wanted_range

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("", (0, 10)),
        ("bytes=0-", (0, 10)),
        ("bytes=4-", (4, 10)),
        ("bytes=4-6", (4, 7)),
        ("bytes=4-99", (4, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=10-", None),
        ("bytes=6-4", None),
        ("bytes=-0", None),
        ("bytes=-", (0, 10)),
        ("bytes=1-2,4-5", (0, 10)),
        ("lines=1-2", (0, 10)),
    ],
)
def test_range_is_read_as_http_means_it(header: str, wanted: tuple[int, int] | None) -> None:
    assert wanted_range(header, 10) == wanted


@given(st.text(), st.integers(0, 100))
def test_whatever_is_asked_for_lies_within_the_file(header: str, size: int) -> None:
    found = wanted_range(header, size)
    assert found is None or 0 <= found.start <= found.end <= size


@pytest.mark.parametrize(
    ("header", "status", "body"),
    [("", 200, b"0123456789"), ("bytes=7-", 206, b"789"), ("bytes=10-", 416, b"")],
)
async def test_answer_has_the_bytes_that_were_asked_for(
    tmp_path: Path, header: str, status: int, body: bytes
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        await send_file(send, descriptor, header)
    finally:
        os.close(descriptor)
    assert sent[0]["status"] == status
    assert b"".join(message["body"] for message in sent[1:]) == body
    assert dict(sent[0]["headers"])[b"content-length"] == b"%d" % len(body)
