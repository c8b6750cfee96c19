"""A gateway for each test, with one model `m` that says hello."""

from collections.abc import AsyncIterator

import ollama
import pytest

from tests.integration.api.ollama.clients import client_of
from tests.support.scripted_upstreams import Gateway, gateway, serving


@pytest.fixture
async def served() -> AsyncIterator[Gateway]:
    async with serving(gateway()) as running:
        yield running


@pytest.fixture
async def client(served: Gateway) -> AsyncIterator[ollama.AsyncClient]:
    async with client_of(served.url) as client:
        yield client
