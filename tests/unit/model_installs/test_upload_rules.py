"""What the headers of an upload say, and which uploads may be begun or continued."""

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remuda.core.errors import Conflict, Invalid, TooLarge, Unavailable
from remuda.model_installs import upload_rules as rules
from remuda.model_installs.upload_rules import AnnouncedFile, UploadProgress
from remuda.models.files import path_fault

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEYS = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=20)


def there(path: str = "m.gguf", size: int = 10, offset: int = 0, upload: str = "upload-1") -> UploadProgress:
    return UploadProgress(AnnouncedFile(upload, path, size), offset, NOON)


@given(st.dictionaries(KEYS, st.text(max_size=40), max_size=5))
def test_metadata_is_read_as_it_was_written(values: dict[str, str]) -> None:
    assert rules.read_metadata(rules.written_metadata(values)) == values


@given(st.text(max_size=60))
@example("key \x80")
def test_any_metadata_is_read_or_refused(text: str) -> None:
    with suppress(Invalid):
        assert all(" " not in key for key in rules.read_metadata(text))


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30), st.text(max_size=80))
def test_no_announcement_leads_out_of_the_models_folder(
    length: str, path: str, upload: str, sha256: str
) -> None:
    metadata = {"filename": path, "upload": upload, "sha256": sha256}
    try:
        file = rules.announced_file(length, metadata, "made-up-id", "admin")
    except (Invalid, TooLarge):
        return
    assert not path_fault(file.path)
    assert "/" not in file.id
    assert ".." not in file.id


@pytest.mark.parametrize("path", ["../m.gguf", "/etc/passwd", "a//b", "a\\b", "", "a\0b", "x" * 300])
def test_a_file_name_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(Invalid):
        rules.announced_file("10", {"filename": path}, "made-up-id", "")


def test_a_file_that_was_announced_before_goes_on() -> None:
    before = there(offset=7)
    assert rules.check_creation(before.file, [there("other"), before]) == before
    assert rules.check_creation(AnnouncedFile("upload-1", "new", 3), [before]) is None


def test_another_file_in_the_place_of_one_is_a_conflict() -> None:
    with pytest.raises(Conflict, match=r"m\.gguf is already being uploaded as upload-1, with 10 bytes"):
        rules.check_creation(AnnouncedFile("upload-1", "m.gguf", 11), [there()])


def test_only_so_many_models_are_uploaded_at_a_time() -> None:
    full = [there(upload=f"upload-{number}") for number in range(rules.MODELS_MAX)]
    with pytest.raises(Unavailable, match=f"{rules.MODELS_MAX} models"):
        rules.check_creation(AnnouncedFile("one-more", "m.gguf", 1), full)
    assert rules.check_creation(AnnouncedFile("upload-3", "second.gguf", 1), full) is None, (
        "a file of one of them"
    )


@given(st.integers(0, 20), st.integers(0, 30), st.one_of(st.none(), st.integers(0, 30)))
def test_a_part_is_taken_only_where_the_file_ends_and_within_its_size(
    at: int, offset: int, announced: int | None
) -> None:
    def check() -> None:
        rules.check_part(there(size=20, offset=at), offset, announced)

    if offset != at:
        with pytest.raises(Conflict, match=f"has {at} bytes, and this part begins at {offset}"):
            check()
    elif announced is not None and offset + announced > 20:
        with pytest.raises(Invalid, match="beyond the 20 bytes"):
            check()
    else:
        check()


def test_what_is_missing_is_named_with_its_numbers() -> None:
    files = [there("a", 5, 5), there("b", 9, 4), there("c", 1, 0)]
    with pytest.raises(Conflict, match="b has 4 of 9 bytes, and 1 more"):
        rules.check_complete("upload-1", files)
    rules.check_complete("upload-1", files[:1])


@pytest.mark.parametrize("text", ["md5 abc", "sha256 !", "sha256 YWJj"])
def test_a_checksum_that_cannot_be_checked_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="Upload-Checksum"):
        rules.read_checksum(text)
