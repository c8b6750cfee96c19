"""Refused: raised anywhere below a call, it becomes that call's gRPC status."""

import grpc


class Refused(Exception):
    """The call ends with this status; `message` is for the caller, and `metadata` for its program."""

    def __init__(
        self, code: grpc.StatusCode, message: str, metadata: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.metadata = metadata


class ModelNotLoaded(Refused):
    """Frontends know these words, and load the model before they ask again."""

    def __init__(self, why: str = "") -> None:
        message = f"model not loaded: {why}" if why else "model not loaded"
        super().__init__(grpc.StatusCode.FAILED_PRECONDITION, message)
