"""Size strings as Go writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.wire.sizes import install_size, parse_size, staging_size

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("size_bytes", "install", "staging"),
    [
        (0, "0 B", "0 B"),
        (1023, "1023 B", "1023 B"),
        (1024, "1.0 KiB", "1.0 KB"),
        (MIB - 1, "1024.0 KiB", "1024.0 KB"),
        (412 * MIB, "412.0 MiB", "412.0 MB"),
        (2254857830, "2.1 GiB", "2.1 GB"),
        (2**64 - 1, "16.0 EiB", "16.0 EB"),
    ],
)
def test_size_is_written_both_ways(size_bytes: int, install: str, staging: str) -> None:
    assert (install_size(size_bytes), staging_size(size_bytes)) == (install, staging)


@given(st.integers(0, 2**64 - 1))
def test_reading_back_is_off_by_at_most_the_dropped_decimals(size_bytes: int) -> None:
    for text in (install_size(size_bytes), staging_size(size_bytes)):
        read = parse_size(text)
        assert read is not None
        assert abs(read - size_bytes) <= size_bytes * 0.05


@given(st.integers(0, 2**64 - 1))
def test_both_forms_mean_the_same(size_bytes: int) -> None:
    assert parse_size(install_size(size_bytes)) == parse_size(staging_size(size_bytes))


@pytest.mark.parametrize(
    "text", ["", "12", "1.5 XB", "-1 B", "1 KiBs", "1,5 KiB", "KiB", "9" * 40 + " B", "\u0661 B"]
)
def test_other_text_is_no_size(text: str) -> None:
    assert parse_size(text) is None


def test_space_is_optional() -> None:
    assert parse_size("12GB") == 12 * 1024**3
