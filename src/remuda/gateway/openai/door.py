"""Where requests for OpenAI's API leave the way of all others."""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from remuda.core.clock import Clock
from remuda.gateway.openai.admission import Admission
from remuda.gateway.openai.api import Api
from remuda.gateway.openai.pages import MODELS, respond
from remuda.gateway.openai.parsing import ASKS, PREFIX
from remuda.gateway.services import Inference, Services

_WITHOUT_PREFIX: Final = frozenset({MODELS, *ASKS})


def served_path(path: str) -> str | None:
    """The path below /v1 that is meant, also by clients that leave /v1 out; None: one of another API."""
    if path == PREFIX or path.startswith(f"{PREFIX}/"):
        return path
    full = f"{PREFIX}{path}"
    return full if full in _WITHOUT_PREFIX or full.startswith(f"{MODELS}/") else None


class Door:
    """What is below /v1 is answered here; everything else passes on to `elsewhere`."""

    def __init__(self, elsewhere: ASGIApp, services: Services, inference: Inference, clock: Clock) -> None:
        self._elsewhere = elsewhere
        self._admission = Admission(services.access, services.keyring, inference.tables)
        self._look_again = inference.look_again
        self._api = Api(inference, self._admission, clock, f"req-{services.entropy.uuid()[:13]}-")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = served_path(scope["path"]) if scope["type"] == "http" else None
        if path is None:
            await self._elsewhere(scope, receive, send)
            return
        ask = ASKS.get(path)
        if ask is not None and scope["method"] == "POST":
            await self._api(ask, scope, receive, send)
        else:
            request_id = self._api.request_id(dict(scope["headers"]))
            headers, look_again = scope["headers"], self._look_again
            await respond(self._admission, look_again, scope["method"], path, headers, send, request_id)
