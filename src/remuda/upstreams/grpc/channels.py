"""Connections to backends: one for each address, and the calls that can be made over it."""

from typing import Any, Final

import grpc
import grpc.aio

from remuda.upstreams.grpc import limits, methods

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", limits.RECEIVED_BYTES_MAX),
    ("grpc.max_send_message_length", limits.SENT_BYTES_MAX),
    # Channels to one address share its connection, and the pause after a refused one, unless told not to.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.min_reconnect_backoff_ms", round(1000 * limits.CONNECT_S)),
    ("grpc.initial_reconnect_backoff_ms", round(1000 * limits.RECONNECT_AFTER_S)),
    ("grpc.max_reconnect_backoff_ms", round(1000 * limits.RECONNECT_AFTER_MAX_S)),
    ("grpc.keepalive_time_ms", round(1000 * limits.KEEPALIVE_EVERY_S)),
    ("grpc.keepalive_timeout_ms", round(1000 * limits.KEEPALIVE_ANSWER_S)),
)


class Channel:
    """One backend's. It connects when it is first used, and again when it has to.

    Messages go in and come out as bytes: what cannot be decoded is ours to report, where gRPC would log it
    and hand over nothing.
    """

    def __init__(self, address: str, token: str = "") -> None:
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        # Made once: of anything else gRPC makes one for each call.
        self._metadata = grpc.aio.Metadata(*((("authorization", f"Bearer {token}"),) if token else ()))
        self._unary: dict[str, Any] = {}
        self._streams: dict[str, Any] = {}

    def unary(self, method: str, request: bytes) -> Any:
        """The call, to be awaited; begun already."""
        callable_ = self._unary.get(method)
        if callable_ is None:
            callable_ = self._unary[method] = self._channel.unary_unary(methods.path(method))
        return callable_(request, metadata=self._metadata)

    def stream(self, method: str, request: bytes) -> Any:
        """The call, to be read from; begun already."""
        callable_ = self._streams.get(method)
        if callable_ is None:
            callable_ = self._streams[method] = self._channel.unary_stream(methods.path(method))
        return callable_(request, metadata=self._metadata)

    async def close(self) -> None:
        """Calls still open end."""
        await self._channel.close()
