"""`python -m remuda.backends.llama_cpp --addr HOST:PORT`."""

import os
import sys

# Before gRPC is imported: its fork handlers start threads in the engine's process before that has become
# another program, and some of those starts crash. A fork that only leads to an exec does without them.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

from remuda.backends.llama_cpp.backend import LlamaCppBackend
from remuda.backends.serving import serve
from remuda.core.entropy import SystemEntropy

if __name__ == "__main__":
    sys.exit(serve(LlamaCppBackend(SystemEntropy()), sys.argv[1:], os.environ))
