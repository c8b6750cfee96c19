"""A backend whose engine never lets go: closing it blocks the whole event loop."""

import os
import sys
import threading

from remuda.backends import limits
from remuda.backends.calls import Backend
from remuda.backends.serving import serve


class Stubborn(Backend):
    async def close(self) -> None:
        threading.Event().wait()


if __name__ == "__main__":
    limits.EXIT_S = 0.5
    sys.exit(serve(Stubborn(), sys.argv[1:], os.environ))
