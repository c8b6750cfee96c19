"""The echo backend's calls."""

from collections.abc import AsyncGenerator

from remuda.backends.calls import Backend, Context
from remuda.rpc import backend_pb2 as pb


class EchoBackend(Backend):
    async def LoadModel(self, request: pb.ModelOptions, context: Context) -> pb.Result:
        return pb.Result(success=True, message="loaded")

    async def Free(self, request: pb.HealthMessage, context: Context) -> pb.Result:
        return pb.Result(success=True)

    async def PredictStream(
        self, request: pb.PredictOptions, context: Context
    ) -> AsyncGenerator[pb.Reply, None]:
        for word in request.Prompt.split():
            yield pb.Reply(message=word.encode())
