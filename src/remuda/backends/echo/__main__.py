"""`python -m remuda.backends.echo --addr HOST:PORT`."""

import os
import sys

from remuda.backends.echo.backend import EchoBackend
from remuda.backends.serving import serve

if __name__ == "__main__":
    sys.exit(serve(EchoBackend(), sys.argv[1:], os.environ))
