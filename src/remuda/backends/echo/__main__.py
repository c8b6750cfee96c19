"""`python -m remuda.backends.echo --addr HOST:PORT`."""

import os
import sys

from remuda.backends.echo.backend import EchoBackend
from remuda.backends.echo.speech import begin
from remuda.backends.serving import serve

if __name__ == "__main__":
    start = begin(os.environ)
    sys.exit(serve(EchoBackend(ready=start.ready), sys.argv[1:], os.environ))
