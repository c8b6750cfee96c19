"""Which operation the beginning of an id means."""

import pytest

from remuda.cli.client import AdminClient, ApiAnswer
from remuda.cli.ops import whole_id
from remuda.cli.target import Target
from remuda.core.errors import Invalid, NotFound
from remuda.wire.codec import encode
from remuda.wire.operations import OpViews
from tests.unit.cli.ops_views import an_op

FIRST, SECOND = "aaaa1111-0000-4000-8000-000000000001", "aaaa2222-0000-4000-8000-000000000002"


class Known(AdminClient):
    """A frontend with two operations, of a release that lists them all whatever is asked."""

    def get(self, *path: str, **query: str) -> ApiAnswer:
        load = an_op(id=SECOND, kind="load", model="qwen")
        return ApiAnswer(200, encode(OpViews(operations=(an_op(id=FIRST), load))), None)


@pytest.fixture
def client() -> Known:
    return Known(Target("http://127.0.0.1:1"))


@pytest.mark.parametrize("wanted", [FIRST, "aaaa1", "AAAA1111-0"])
def test_an_id_or_its_beginning_means_an_operation(client: Known, wanted: str) -> None:
    assert whole_id(client, wanted) == FIRST


def test_a_beginning_of_several_is_refused_with_all_of_them(client: Known) -> None:
    with pytest.raises(Invalid, match="'aaaa' matches 2 ids") as refused:
        whole_id(client, "aaaa")
    assert f"{FIRST} (install {an_op().backend})" in refused.value.hint
    assert f"{SECOND} (load qwen)" in refused.value.hint


@pytest.mark.parametrize("wanted", ["b", "", "../nodes", "*"])
def test_what_begins_no_id_is_not_found(client: Known, wanted: str) -> None:
    with pytest.raises(NotFound):
        whole_id(client, wanted)
