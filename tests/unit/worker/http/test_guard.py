"""Everything but the probes is for those who hold the token."""

from contextlib import suppress
from pathlib import Path

import aiohttp
import anyio
import pytest
from pydantic import SecretStr

from remuda.core import limits
from remuda.worker.enrolment import OpeningTokens
from remuda.worker.http.app import TokenGuard
from tests.support.worker_http import AUTHORIZED, TOKEN, worker

pytestmark = pytest.mark.anyio

PATHS = [
    "/v1/backend-logs",
    "/v1/backend-logs/x",
    "/v1/files/models/x",
    "/v1/files-list/models",
    "/v1/processes",
    "/v1/processes/x%230/v1/models",
    "/",
    "/metrics",
]


@pytest.mark.parametrize(
    "given", [None, "", TOKEN, f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer", "Bearer \xe9"]
)
async def test_without_the_token_nothing_is_answered(tmp_path: Path, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given}
    async with worker(tmp_path, headers=headers) as caller:
        for path in PATHS:
            async with caller.get(path) as answer:
                assert (answer.status, answer.headers["X-Remuda-Code"]) == (401, "unauthorized")
                of_localai = path.startswith(("/v1/backend-logs", "/v1/files"))
                assert await refusal(answer) == ("unauthorized" if of_localai else "missing or invalid token")


async def refusal(answer: aiohttp.ClientResponse) -> str:
    """Plain text where LocalAI's workers have the path, else as frontends answer."""
    if answer.content_type == "text/plain":
        return await answer.text()
    error = (await answer.json())["error"]
    assert (error["code"], error["reason"]) == (answer.status, answer.headers["X-Remuda-Code"])
    return str(error["message"])


async def test_probes_need_no_token(tmp_path: Path) -> None:
    async with worker(tmp_path, headers={}) as caller, caller.get("/readyz") as answer:
        assert answer.status == 200


async def test_with_the_token_there_is_no_more_than_there_is(tmp_path: Path) -> None:
    async with worker(tmp_path) as caller:
        for path in ("/", "/metrics", "/healthz/", "/v1/backend-logsx", "/v1/backend-logs/"):
            async with caller.get(path) as answer:
                assert (answer.status, answer.headers["X-Remuda-Code"]) == (404, "not_found")
                assert await refusal(answer) == "not found"


@pytest.mark.parametrize("token", [None, SecretStr("")])
@pytest.mark.parametrize("given", [{}, {"Authorization": "Bearer "}, AUTHORIZED])
async def test_an_empty_token_opens_nothing(
    tmp_path: Path, token: SecretStr | None, given: dict[str, str]
) -> None:
    guard = TokenGuard(OpeningTokens(token))
    async with worker(tmp_path, guard=guard, headers=given) as caller, caller.get(PATHS[0]) as answer:
        assert answer.status == 401


async def test_a_worker_told_to_do_without_a_token_is_open(tmp_path: Path) -> None:
    guard = TokenGuard(OpeningTokens(None), open_without_token=True)
    async with worker(tmp_path, guard=guard, headers={}) as caller, caller.get(PATHS[0]) as answer:
        assert answer.status == 200


async def test_a_token_counts_also_when_none_would_do(tmp_path: Path) -> None:
    guard = TokenGuard(OpeningTokens(SecretStr(TOKEN)), open_without_token=True)
    async with worker(tmp_path, guard=guard, headers={}) as caller, caller.get(PATHS[0]) as answer:
        assert answer.status == 401


async def said_to(folder: Path, request: bytes) -> bytes:
    """Everything a worker says to this until it hangs up."""
    said = b""
    with anyio.fail_after(10):
        async with worker(folder) as caller:
            url = caller._base_url
            assert url is not None
            async with await anyio.connect_tcp("127.0.0.1", url.port or 0) as stranger:
                await stranger.send(request)
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    while True:
                        said += await stranger.receive()
    return said


async def test_a_head_without_end_is_refused(tmp_path: Path) -> None:
    said = await said_to(tmp_path, b"GET / HTTP/1.1\r\nX: " + b"x" * limits.HEAD_BYTES_MAX)
    assert said.startswith(b"HTTP/1.1 400")


async def test_trailers_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FRAMING_BYTES_MAX", 10_000)
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    said = await said_to(tmp_path, head + b"0\r\n" + b"X: y\r\n" * 2_000)
    assert b"HTTP/1.1 400" in said
