"""Libraries that others import if they find them, and that this process has no use for."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden(package: str) -> Iterator[None]:
    """In this block imports of `package` fail, as if it were not installed; not if it is imported already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment] # So that an import raises ImportError.
    try:
        yield
    finally:
        del sys.modules[package]


@contextmanager
def without_extras() -> Iterator[None]:
    """Around the imports of processes that run long. structlog would import rich, and with it a hundred
    languages' syntax highlighting, for a way to render exceptions that we do not use. FastAPI would import
    the old pydantic, to refuse its models, which we have none of. Pydantic would build all models, FastAPI's
    of OpenAPI with them, most of which are never used: each is built when it is."""
    sys.modules.setdefault("pydantic.v1", None)  # type: ignore[arg-type] # Never there.
    with hidden("rich"):
        import structlog  # noqa: F401
    from pydantic import BaseModel  # Short commands do without.

    BaseModel.model_config["defer_build"] = True  # Inherited.
    try:
        yield
    finally:
        del BaseModel.model_config["defer_build"]
