"""The official clients, as people make them."""

from typing import Any

import ollama

HI = [{"role": "user", "content": "hi"}]


def client_of(url: str, key: str = "") -> ollama.AsyncClient:
    return ollama.AsyncClient(url, **_settings(key))


def sync_client_of(url: str, key: str = "") -> ollama.Client:
    return ollama.Client(url, **_settings(key))


def _settings(key: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return {"headers": headers, "trust_env": False, "timeout": 30}
