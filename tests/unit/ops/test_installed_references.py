"""What is installed under a name is what was asked for only if it came from the same reference."""

from dataclasses import replace

import pytest

from remuda.ops.model import Goal, Source
from remuda.ops.planning import observe
from tests.unit.ops.build import NOW, a_step
from tests.unit.ops.fleet import NEW, OLD, a_node, artifact

V1, V2 = "registry.example/me/x:v1", "registry.example/me/x:v2"


def installed(uri: str, digest: str, *, pinned: str = "", foreign: bool = False, wanted: str = V2) -> object:
    node = a_node("n", artifact("x", digest, uri=uri), foreign=foreign)
    step = replace(a_step(node="id-n"), source=Source("x", uri=wanted, name="x"), goal=Goal(("x",), pinned))
    return observe(step, node, None, None, NOW).installed


@pytest.mark.parametrize("foreign", [False, True])
def test_another_reference_is_not_what_was_asked_for(foreign: bool) -> None:
    assert installed(V1, OLD, foreign=foreign) is False
    assert installed(V1, OLD, pinned=NEW, foreign=foreign) is False
    assert installed(f"oci://{V2}", OLD, foreign=foreign) is True


def test_the_same_bytes_from_another_reference_are_only_where_its_worker_cannot_record_the_new_one() -> None:
    assert installed(V1, NEW, pinned=NEW) is False
    assert installed(V1, NEW, pinned=NEW, foreign=True) is True
    assert installed(f"oci://{V2}", NEW, pinned=NEW) is True


def test_the_same_reference_with_other_bytes_is_not_unless_its_worker_never_fetches_anew() -> None:
    assert installed(V2, OLD, pinned=NEW) is False
    assert installed(V2, OLD, pinned=NEW, foreign=True) is True


def test_what_does_not_tell_where_it_came_from_counts() -> None:
    assert installed("", "") is True
