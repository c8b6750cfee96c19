"""A gateway for each test, with one model `m` that says hello."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.support.plain_http import PLAIN
from tests.support.raw_http import RawClient, raw_client
from tests.support.scripted_upstreams import Gateway, gateway, serving


@pytest.fixture
async def served() -> AsyncIterator[Gateway]:
    async with serving(gateway()) as running:
        yield running


@pytest.fixture
async def client(served: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=20, verify=PLAIN) as client:
        yield client


@pytest.fixture
async def raw(served: Gateway) -> AsyncIterator[RawClient]:
    async with raw_client(served.port) as client:
        yield client
