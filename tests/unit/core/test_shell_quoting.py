"""Names that peers chose do nothing in a shell that a hint is pasted into."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.shell_quoting import pasted


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
