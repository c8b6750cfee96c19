"""Names, ids, and beginnings of ids."""

from dataclasses import dataclass

import pytest

from remuda.cli.suggestions import pick
from remuda.core.errors import Invalid, NotFound


@dataclass(frozen=True, slots=True)
class Thing:
    id: str
    name: str


ATTIC, CELLAR, NAMED_LIKE_AN_ID = Thing("3f2a-1", "attic"), Thing("3f2b-2", "cellar"), Thing("9999-3", "3f2a")
THINGS = [ATTIC, CELLAR, NAMED_LIKE_AN_ID]


@pytest.mark.parametrize(
    ("wanted", "thing"),
    [
        ("attic", ATTIC),
        ("3f2b-2", CELLAR),
        ("3f2b", CELLAR),
        ("9", NAMED_LIKE_AN_ID),
        ("3f2a", NAMED_LIKE_AN_ID),
    ],
)
def test_a_name_comes_before_an_id_and_an_id_before_its_beginning(wanted: str, thing: Thing) -> None:
    assert pick("node", THINGS, wanted) is thing


def test_an_id_that_begins_another_names_itself() -> None:
    assert pick("node", [Thing("ab", "one"), Thing("abc", "two")], "ab").name == "one"


def test_a_beginning_of_several_ids_is_refused_with_all_of_them() -> None:
    with pytest.raises(Invalid, match="2 node ids") as refusal:
        pick("node", THINGS, "3f2")

    assert "attic (3f2a-1)" in refusal.value.hint
    assert "cellar (3f2b-2)" in refusal.value.hint


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(NotFound, match="there is no node 'atic'") as refusal:
        pick("node", THINGS, "atic")

    assert refusal.value.hint == "did you mean attic?"


def test_a_name_like_no_other_is_answered_with_what_there_is() -> None:
    with pytest.raises(NotFound) as refusal:
        pick("key", THINGS, "zzz")

    assert refusal.value.hint == "there are: attic, cellar, 3f2a"


@pytest.mark.parametrize("wanted", ["", "attic"])
def test_nothing_is_found_among_nothing(wanted: str) -> None:
    with pytest.raises(NotFound) as refusal:
        pick("node", [], wanted)

    assert refusal.value.hint == "there are no nodes"
