"""A file that is read while it grows."""

from pathlib import Path

import pytest

from remuda.oci.disk import GrowingFile, Growth, StartedOver


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "partial"
    file.write_bytes(b"0123456789")
    return file


def test_only_what_was_told_of_is_read(path: Path) -> None:
    growth = Growth()
    file = GrowingFile(path, growth)
    growth.reached(4)

    assert file.read(3) == b"012"
    assert file.read(3) == b"3"
    growth.reached(10)
    assert file.read(100) == b"456789"
    file.close()


def test_the_end_is_reached_once_it_is_verified(path: Path) -> None:
    growth = Growth()
    file = GrowingFile(path, growth)
    growth.reached(10)
    growth.verified()
    growth.ended()

    assert file.read(100) == b"0123456789"
    assert file.read(100) == b""
    file.close()


def test_a_download_that_ends_unverified_has_no_end(path: Path) -> None:
    growth = Growth()
    file = GrowingFile(path, growth)
    growth.reached(10)
    growth.ended()

    assert file.read(100) == b"0123456789"
    with pytest.raises(StartedOver):
        file.read(100)
    file.close()


def test_a_download_that_starts_over_cannot_be_read_on(path: Path) -> None:
    growth = Growth()
    file = GrowingFile(path, growth)
    growth.reached(4)
    file.read(2)

    growth.restarted()
    growth.reached(10)

    with pytest.raises(StartedOver):
        file.read(2)
    file.close()
