"""`python -m remuda.backends.llama_cpp --addr HOST:PORT`."""

import os
import sys

from remuda.backends.llama_cpp.backend import LlamaCppBackend
from remuda.backends.serving import serve
from remuda.core.entropy import SystemEntropy

if __name__ == "__main__":
    sys.exit(serve(LlamaCppBackend(SystemEntropy()), sys.argv[1:], os.environ))
