"""A gateway for each test, with one model `m` that answers in the terms that all APIs share."""

from collections.abc import AsyncIterator

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tests.integration.api.responses.scripts import says
from tests.support.plain_http import PLAIN
from tests.support.scripted_upstreams import Gateway, gateway, serving


def client_of(served: Gateway, key: str = "sk-none") -> AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(api_key=key, base_url=f"{served.url}/v1", http_client=http, max_retries=0)


@pytest.fixture
async def served() -> AsyncIterator[Gateway]:
    async with serving(gateway()) as running:
        running.upstreams.typed = says("Hello", " there")
        yield running


@pytest.fixture
async def client(served: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(served) as client:
        yield client


@pytest.fixture
async def http(served: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=20, verify=PLAIN) as client:
        yield client
