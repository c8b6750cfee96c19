"""A backend as none should be: its calls fall over, and it never lets go."""

import os
import sys
import threading
from collections.abc import AsyncGenerator

import anyio

from remuda.backends import serving
from remuda.backends.calls import Backend, Context
from remuda.backends.serving import serve
from remuda.rpc import backend_pb2 as pb

_LOAD_S = 0.1  # Long enough for another load to come in between, if it could.


class Unruly(Backend):
    def __init__(self) -> None:
        self._loads = 0

    async def LoadModel(self, request: pb.ModelOptions, context: Context) -> pb.Result:
        """Says how many are loading; one at a time is all it can bear."""
        self._loads += 1
        loads = self._loads
        await anyio.sleep(_LOAD_S)
        self._loads -= 1
        return pb.Result(success=True, message=str(loads))

    async def Predict(self, request: pb.PredictOptions, context: Context) -> pb.Reply:
        raise RuntimeError("the engine fell over")

    async def PredictStream(
        self, request: pb.PredictOptions, context: Context
    ) -> AsyncGenerator[pb.Reply, None]:
        yield pb.Reply(message=b"one")
        raise RuntimeError("the engine fell over")

    async def close(self) -> None:
        threading.Event().wait()  # On the event loop, which ends with this.


if __name__ == "__main__":
    serving.EXIT_S = 0.5
    sys.exit(serve(Unruly(), sys.argv[1:], os.environ))
