"""A gateway for each test, with one model `m` that says hello in the terms that all APIs share."""

from collections.abc import AsyncIterator

import anthropic
import httpx
import pytest
from anthropic import AsyncAnthropic

from remuda.inference.answers import AnswerSink, Delta, FinishReason, Tokens, Usage
from remuda.inference.model import InferenceCall, RequestKind
from tests.support.plain_http import PLAIN
from tests.support.raw_http import RawClient, raw_client
from tests.support.scripted_upstreams import Gateway, gateway, serving


async def hello(call: InferenceCall, sink: AnswerSink) -> None:
    if call.kind is RequestKind.TOKENIZE:
        await sink.tokens(Tokens(7))
        return
    texts = sink.texts(1)
    await texts.write(0, Delta("Hello"))
    await texts.finish(0, FinishReason.STOP, Delta(" there"))
    await texts.end(Usage(3, 2))


def client_of(served: Gateway, key: str = "sk-none") -> AsyncAnthropic:
    http = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    return AsyncAnthropic(api_key=key, base_url=served.url, http_client=http, max_retries=0)


@pytest.fixture
async def served() -> AsyncIterator[Gateway]:
    async with serving(gateway()) as running:
        running.upstreams.typed = hello
        yield running


@pytest.fixture
async def client(served: Gateway) -> AsyncIterator[AsyncAnthropic]:
    async with client_of(served) as client:
        yield client


@pytest.fixture
async def http(served: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"anthropic-version": "2023-06-01"}
    async with httpx.AsyncClient(
        base_url=served.url, trust_env=False, timeout=20, verify=PLAIN, headers=headers
    ) as client:
        yield client


@pytest.fixture
async def raw(served: Gateway) -> AsyncIterator[RawClient]:
    async with raw_client(served.port) as client:
        yield client
