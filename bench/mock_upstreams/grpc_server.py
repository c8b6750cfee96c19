"""A backend of canned replies.    python -m bench.mock_upstreams.grpc_server PORT"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from bench.mock_upstreams import HOLD, TEXT, TOKENS_PER_S
from remuda.rpc import backend_pb2 as pb
from remuda.rpc.backend_pb2_grpc import BackendServicer, add_BackendServicer_to_server

_WHOLE = pb.Reply(
    message=TEXT.encode(), tokens=72, prompt_tokens=420, chat_deltas=[pb.ChatDelta(content=TEXT)]
)
_TOKEN = pb.Reply(
    message=b" horse", tokens=1, prompt_tokens=420, chat_deltas=[pb.ChatDelta(content=" horse")]
)


class Replica(BackendServicer):  # type: ignore[misc]
    async def Health(self, request: pb.HealthMessage, context: Any) -> pb.Reply:
        return pb.Reply(message=b"OK")

    async def LoadModel(self, request: pb.ModelOptions, context: Any) -> pb.Result:
        return pb.Result(success=True)

    async def Predict(self, request: pb.PredictOptions, context: Any) -> pb.Reply:
        return _WHOLE

    async def PredictStream(self, request: pb.PredictOptions, context: Any) -> AsyncIterator[pb.Reply]:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        for _ in range(request.Tokens or 64):
            yield _TOKEN
            if request.Tokens >= HOLD:
                await loop.create_future()
            due_s += 1 / TOKENS_PER_S
            await asyncio.sleep(due_s - loop.time())


async def serve(port: int) -> None:
    server = grpc.aio.server()
    add_BackendServicer_to_server(Replica(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
