"""Where requests for OpenAI's API leave the way of all others."""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from remuda.core.clock import Clock
from remuda.gateway.openai.admission import Admission
from remuda.gateway.openai.api import Api
from remuda.gateway.openai.pages import respond
from remuda.gateway.openai.parsing import ASKS
from remuda.gateway.services import Inference, Services

_PREFIX: Final = "/v1/"


class Door:
    """What is below /v1 is answered here; everything else passes on to `elsewhere`."""

    def __init__(self, elsewhere: ASGIApp, services: Services, inference: Inference, clock: Clock) -> None:
        self._elsewhere = elsewhere
        self._admission = Admission(services.access, services.keyring, inference.tables)
        self._api = Api(inference, self._admission, clock, f"req-{services.entropy.uuid()[:13]}-")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_PREFIX):
            await self._elsewhere(scope, receive, send)
            return
        ask = ASKS.get(scope["path"])
        if ask is not None and scope["method"] == "POST":
            await self._api(ask, scope, receive, send)
        else:
            request_id = self._api.request_id(dict(scope["headers"]))
            await respond(self._admission, scope, send, request_id)
