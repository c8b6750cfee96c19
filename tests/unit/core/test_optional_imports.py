"""What processes that run long do without stays out, and can be imported afterwards."""

import subprocess
import sys

import pytest
from pydantic import BaseModel

from remuda.core.optional_imports import hidden, without_extras

HEAVY = {"alembic", "grpc", "mako", "psycopg", "pydantic.v1.main", "pygments", "rich"}
HEAVY |= {"sqlalchemy.dialects.postgresql"}
OF_FRONTENDS = {"fastapi", "msgspec", "remuda.inference.requests", "sqlalchemy"}
LOADED = """
import sys
from remuda.core.optional_imports import without_extras
with without_extras():
    import remuda.cli.{module}
print(*sorted({heavy} & set(sys.modules)))
"""


@pytest.mark.parametrize(("module", "heavy"), [("up", HEAVY), ("worker", HEAVY | OF_FRONTENDS)])
def test_what_a_start_does_not_need_is_not_imported(module: str, heavy: set[str]) -> None:
    program = LOADED.format(module=module, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_hidden_package_is_there_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with hidden("this"), pytest.raises(ImportError):
        __import__("this")
    assert "this" not in sys.modules


def test_what_is_imported_already_stays() -> None:
    with hidden("json"):
        import json

        assert sys.modules["json"] is json
    assert sys.modules["json"] is json


def test_models_are_built_when_they_are_used() -> None:
    with without_extras():

        class Horse(BaseModel):
            legs: int

    class Rider(BaseModel):
        legs: int

    assert (Horse.__pydantic_complete__, Rider.__pydantic_complete__) == (False, True)
    assert Horse.model_validate({"legs": "4"}).legs == 4
    assert Horse.__pydantic_complete__
