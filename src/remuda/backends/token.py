"""The shared token that every call must carry, Health included, whatever the method and its kind."""

import hmac
from collections.abc import Awaitable, Callable
from typing import NoReturn

import grpc

TOKEN_VARIABLE = "LOCALAI_GRPC_AUTH_TOKEN"


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc has no types.
    """Refuses calls without `authorization: Bearer <token>` before any of their messages is read."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        # Of this kind for every method: it can answer before, and without, a request.
        self._refusal = grpc.stream_stream_rpc_method_handler(_refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        given = dict(handler_call_details.invocation_metadata).get("authorization", "")
        if hmac.compare_digest(given.encode(), self._expected):
            return await continuation(handler_call_details)
        return self._refusal


async def _refuse(_requests: object, context: grpc.aio.ServicerContext) -> NoReturn:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "invalid token")
    raise AssertionError("abort does not return")
