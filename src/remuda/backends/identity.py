"""Which model a backend holds, so that a call meant for another one is refused instead of answered.

A worker may give the port of a stopped process to the next one while a frontend still knows the old owner.
"""

import grpc
from google.protobuf.message import Message

from remuda.backends.refusal import ModelNotLoaded, Refused
from remuda.rpc import backend_pb2 as pb


class LoadedModel:
    """What the last successful LoadModel brought, until Free."""

    def __init__(self) -> None:
        self._name: str | None = None

    def remember(self, options: pb.ModelOptions) -> None:
        self._name = options.Model

    def forget(self, _request: pb.HealthMessage) -> None:
        self._name = None

    def refusal(self, request: Message) -> Refused | None:
        """Why `request` may not be answered now; None when it may.

        Only `ModelIdentity` is compared: other fields that name a model are rewritten on their way.
        """
        if "ModelIdentity" not in request.DESCRIPTOR.fields_by_name:
            return None
        if self._name is None:
            return ModelNotLoaded()
        wanted: str = getattr(request, "ModelIdentity")  # noqa: B009 - messages in general have no such field.
        if not wanted or not self._name or wanted == self._name:
            return None
        return Refused(
            grpc.StatusCode.NOT_FOUND,
            f"model identity mismatch: this backend holds {self._name!r}, the call is for {wanted!r}",
        )
