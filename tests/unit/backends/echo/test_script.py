"""What echo understands of its instructions."""

import re
from pathlib import Path

import pytest

from remuda.backends.echo.script import Script, read_script

REFERENCE = Path(__file__).parents[4] / "docs/reference/echo.md"


def test_nothing_told_is_plain_echo() -> None:
    assert read_script({}) == Script()


def test_keys_of_others_are_ignored() -> None:
    assert read_script({"parallel": "4", "enable_thinking": "true"}) == Script()


def test_times_are_told_in_milliseconds() -> None:
    script = read_script({"echo_delay_ms": "250", "echo_load_delay_ms": "1500"})
    assert (script.delay_s, script.load_delay_s) == (0.25, 1.5)


def test_a_fault_alone_comes_before_the_first_token() -> None:
    script = read_script({"echo_fail": "UNAVAILABLE"})
    assert (script.fail, script.fail_at_token) == ("UNAVAILABLE", 0)


@pytest.mark.parametrize(
    ("key", "script"),
    [
        ("echo_fail_at_token", Script(fail="INTERNAL", fail_at_token=3)),
        ("echo_crash_at_token", Script(crash="1", crash_at_token=3)),
        ("echo_hang_at_token", Script(hang=True, hang_at_token=3)),
    ],
)
def test_a_place_alone_means_the_usual_fault(key: str, script: Script) -> None:
    assert read_script({key: "3"}) == script


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("echo_delay_ms", "soon"),
        ("echo_delay_ms", "-1"),
        ("echo_token_rate", "inf"),
        ("echo_token_rate", "nan"),
        ("echo_fail", "OK"),
        ("echo_fail", "BROKEN"),
        ("echo_fail_at_token", "1.5"),
        ("echo_crash", "SIGNOTHING"),
        ("echo_crash", "256"),
        ("echo_hang", "maybe"),
        ("echo_dim", "0"),
    ],
)
def test_what_cannot_be_understood_is_named(key: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is .* not '{text}'"):
        read_script({key: text})


def test_an_unknown_key_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no echo_dleay_ms; it has echo_delay_ms, "):
        read_script({"echo_dleay_ms": "1"})


def test_the_reference_names_every_key() -> None:
    with pytest.raises(ValueError, match="it has") as error:
        read_script({"echo_": ""})
    known = set(re.findall(r"echo_\w+", str(error.value)))
    described = set(re.findall(r"^\| `(echo_\w+)`", REFERENCE.read_text(), flags=re.MULTILINE))
    assert known == described
