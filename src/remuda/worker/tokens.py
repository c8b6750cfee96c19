"""The tokens that this worker accepts: for its HTTP server, and for its gRPC backends."""

from pydantic import SecretStr

from remuda.wire.nodes import WorkerTokens


class OpeningTokens:
    """Until a frontend has given this worker tokens of its own, and with frontends that give none, it is the
    registration token that opens everything."""

    def __init__(self, shared: SecretStr | None) -> None:
        self._shared = shared
        self._own: WorkerTokens | None = None

    @property
    def own(self) -> bool:
        return self._own is not None

    @property
    def http(self) -> str:
        return self._shared_text if self._own is None else self._own.http

    @property
    def grpc(self) -> str:
        return self._shared_text if self._own is None else self._own.grpc

    @property
    def _shared_text(self) -> str:
        return "" if self._shared is None else self._shared.get_secret_value()

    def adopt(self, own: WorkerTokens | None) -> bool:
        """Those of the latest registration; None: the frontend gives none. Whether that changes anything."""
        before, self._own = (self.http, self.grpc), own
        return before != (self.http, self.grpc)
