"""Names that were nearly right."""

import pytest

from remuda.core.close_matches import did_you_mean, near_names

NAMES = ["smollm2-135m-instruct", "Qwen3-8B", "qwen3-32b", "bge"]


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ("smollm2", "smollm2-135m-instruct"),
        ("qwen3-8b", "Qwen3-8B"),
        ("bgf", "bge"),
        ("QWEN3-32", "qwen3-32b"),
    ],
)
def test_likeliest_name_comes_first(wanted: str, meant: str) -> None:
    assert near_names(wanted, NAMES)[0] == meant


@pytest.mark.parametrize("wanted", ["", "zzz", "x" * 100_000])
def test_what_is_like_nothing_has_no_near_names(wanted: str) -> None:
    assert near_names(wanted, NAMES) == []


def test_hint_names_them_or_says_what_else_to_do() -> None:
    assert did_you_mean("bg", NAMES, "list them") == "did you mean bge?"
    assert did_you_mean("zzz", NAMES, "list them") == "list them"
