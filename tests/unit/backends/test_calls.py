"""ModelOptions.Options as texts and as values."""

import pytest

from remuda.backends.calls import OptionValue, option_value, parse_options, split_options


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("8", 8),
        ("-1", -1),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("q8_0", "q8_0"),
        ("", ""),
    ],
)
def test_a_value_has_the_narrowest_kind_that_fits(text: str, value: OptionValue) -> None:
    read = option_value(text)
    assert (read, type(read)) == (value, type(value))


def test_only_the_first_colon_separates() -> None:
    assert parse_options(["url:http://host:80"]) == {"url": "http://host:80"}


def test_texts_without_a_colon_are_left_out() -> None:
    assert parse_options(["use_jinja", "parallel:4"]) == {"parallel": 4}


def test_spaces_around_key_and_value_do_not_count() -> None:
    assert split_options([" parallel : 4 "]) == {"parallel": "4"}


def test_the_last_of_equal_keys_counts() -> None:
    assert parse_options(["parallel:4", "parallel:8"]) == {"parallel": 8}
