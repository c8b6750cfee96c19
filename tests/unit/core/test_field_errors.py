"""What is wrong with a field is said in plain words, whatever a validation library calls it."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic_core._pydantic_core import list_all_errors

from remuda.core.field_errors import field_error, wanted


class Sample(BaseModel, extra="forbid", strict=True):
    count: Annotated[int, Field(ge=1, le=9)] = 1
    share: float = 0.5
    sure: bool = True
    name: Annotated[str, Field(min_length=1, max_length=3)] = "a"
    words: list[str] = []
    policy: Literal["all", "rolling"] = "all"
    nested: list["Sample"] = []

    @field_validator("name")
    @classmethod
    def _no_blanks(cls, name: str) -> str:
        if " " in name:
            raise ValueError("must not hold blanks")
        return name


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"count": "3"}, "count must be a whole number"),
        ({"count": 0}, "count must be 1 or more"),
        ({"count": 10}, "count must be 9 or less"),
        ({"share": "half"}, "share must be a number"),
        ({"sure": "yes"}, "sure must be true or false"),
        ({"name": 3}, "name must be a text"),
        ({"name": ""}, "name must not be empty"),
        ({"name": "abcd"}, "name must have at most 3 characters"),
        ({"name": "a b"}, "name: must not hold blanks"),
        ({"words": "a"}, "words must be a list"),
        ({"words": [1]}, "words[0] must be a text"),
        ({"policy": "some"}, "policy must be 'all' or 'rolling'"),
        ({"nested": [{"count": 1.5}]}, "nested[0].count must be a whole number"),
        ({"nested": [3]}, "nested[0] must be an object"),
        ({"unheard": 1}, "unheard is not known here"),
        ([], "the message must be an object"),
    ],
)
def test_a_wrong_value_is_told_in_words(given: object, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate(given)
    assert field_error(caught.value.errors()[0], subject="the message") == words


def test_no_kind_of_error_is_told_in_the_words_of_the_library() -> None:
    told = {kind["type"]: wanted(kind["type"], {}) for kind in list_all_errors()}
    assert {
        kind: words
        for kind, words in told.items()
        if not words.startswith(("must ", "is ", "cannot ", "has "))
    } == {}


def test_a_long_name_is_not_repeated_in_full() -> None:
    with pytest.raises(ValidationError) as caught:
        Sample.model_validate({"x" * 10_000: 1})
    assert len(field_error(caught.value.errors()[0])) < 200
