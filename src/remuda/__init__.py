"""Remuda turns the machines you own into one OpenAI-compatible endpoint."""

import os

# Read when gRPC is imported. Left on, it starts threads in a forked child before that runs its program, and
# some of the backends that a worker starts die of it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def __getattr__(name: str) -> str:
    """The version is looked up when it is asked for: backends, which start often, never do."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("remuda")
