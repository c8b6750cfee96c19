"""Lists of operations that are longer than one page."""

import pytest

from remuda.cli.client import AdminClient, ApiAnswer
from remuda.cli.ops_pages import read_pages
from remuda.cli.target import Target
from remuda.wire.codec import encode
from remuda.wire.operations import OpViews
from tests.unit.cli.ops_views import an_op

COUNT = 2500


class Busy(AdminClient):
    """A frontend with many operations, numbered down to 1."""

    def get(self, *path: str, **query: str) -> ApiAnswer:
        newest = min(int(query.get("before", COUNT + 1)) - 1, COUNT)
        oldest = max(newest - int(query["limit"]), 0)
        ops = tuple(an_op(id=f"op-{number}") for number in range(newest, oldest, -1))
        return ApiAnswer(200, encode(OpViews(operations=ops, next=oldest + 1 if oldest else None)), None)


@pytest.mark.parametrize(
    ("limit", "more"), [(1, True), (1000, True), (1001, True), (2500, False), (None, False)]
)
def test_as_many_are_listed_as_were_asked_for(limit: int | None, more: bool) -> None:
    listed = read_pages(Busy(Target("http://127.0.0.1:1")), {}, limit).views
    count = COUNT if limit is None else limit
    assert [op.id for op in listed.operations] == [f"op-{COUNT - place}" for place in range(count)]
    assert (listed.next is not None) is more
