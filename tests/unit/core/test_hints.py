"""Names that were nearly right."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.hints import did_you_mean, near_names, pasted

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


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("gpu-1", "gpu-1"),
        ("gpu 1", "'gpu 1'"),
        ("x; rm -rf ~", "'x; rm -rf ~'"),
        ("$(reboot)", "'$(reboot)'"),
        ("it's", "'it'\"'\"'s'"),
        ("--help", "-- --help"),
        ("a\x1b]0;b\nc", "'a?]0;b?c'"),
        ("", "''"),
    ],
)
def test_a_name_is_one_word(name: str, word: str) -> None:
    assert pasted(name) == word


@given(st.text())
def test_whatever_the_name_is_the_command_has_one_word_more(name: str) -> None:
    line = f"remuda nodes show {pasted(name)}"

    words = [word for word in shlex.split(line) if word != "--"]
    assert len(words) == 4 or name == "--"
    assert line.isprintable()
