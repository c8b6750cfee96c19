"""Values kept as JSON text. Rows outlive releases: what is not known is skipped, and what is missing has its
default, so a field that is added to such a value needs one."""

from functools import lru_cache
from typing import TypeVar

from pydantic import TypeAdapter
from sqlalchemy import Dialect, Text, TypeDecorator

T = TypeVar("T")

_VALUES_KEPT = 4096  # Many rows hold the same values, and all are read again and again.


class Document(TypeDecorator[T]):
    """An immutable value of one type. The same value is always the same text, so columns can be compared."""

    impl = Text
    cache_ok = True

    def __init__(self, of: type[T]) -> None:
        super().__init__()
        self.of = of
        self._adapter = TypeAdapter(of)
        self._read = lru_cache(_VALUES_KEPT)(self._adapter.validate_json)

    def process_bind_param(self, value: T | None, dialect: Dialect) -> str | None:
        return None if value is None else self._adapter.dump_json(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> T | None:
        return None if value is None else self._read(value)
