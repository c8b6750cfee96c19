"""What the tests ask for."""

from typing import Any

from tests.support.raw_http import post

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = ASK | {"stream": True}
ASK_CHAT = post(CHAT, ASK)
ASK_STREAM = post(CHAT, STREAM)
