"""Which model a backend holds, so that a call meant for another one is refused instead of answered.

A worker may give the port of a stopped process to the next one while a frontend still knows the old owner.
"""

import grpc
from google.protobuf.message import Message

from remuda.backends.refusal import Refused
from remuda.rpc import backend_pb2 as pb


class LoadedModel:
    """What the last successful LoadModel brought, until Free."""

    def __init__(self) -> None:
        self._name: str | None = None

    def remember(self, options: pb.ModelOptions) -> None:
        self._name = options.Model

    def forget(self, _request: pb.HealthMessage) -> None:
        self._name = None

    def check(self, request: Message) -> None:
        """Raise Refused unless `request` may be answered now. Only `ModelIdentity` is compared: other fields
        that name a model are rewritten on their way."""
        if "ModelIdentity" not in request.DESCRIPTOR.fields_by_name:
            return
        if self._name is None:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "model not loaded")
        wanted = getattr(request, "ModelIdentity")  # noqa: B009 - a Message in general has no such attribute.
        if wanted and self._name and wanted != self._name:
            raise Refused(
                grpc.StatusCode.NOT_FOUND,
                f"model identity mismatch: this backend holds {self._name!r}, the call is for {wanted!r}",
            )
