"""Upper layers hide what lower ones hold, and never what they hold themselves."""

import itertools
import os
from pathlib import Path

import pytest

from tests.support.archives import Member, folder, hardlink, listing, member, packed, symlink, unpack

LOWER = [
    folder("d"),
    member("d/old"),
    member("d/both", data=b"lower"),
    folder("d/sub"),
    member("d/sub/deep"),
    symlink("d/link", "old"),
    member("top"),
]


def applied(target: Path, *upper: Member) -> list[str]:
    unpack(target, packed(*LOWER), packed(*upper))
    return listing(target)


def test_whiteout_removes_a_file(tmp_path: Path) -> None:
    assert "d/old" not in applied(tmp_path, member("d/.wh.old"))


def test_whiteout_removes_a_folder_with_its_content(tmp_path: Path) -> None:
    assert applied(tmp_path, member(".wh.d")) == ["top"]


def test_whiteout_removes_a_link_and_not_its_target(tmp_path: Path) -> None:
    found = applied(tmp_path, member("d/.wh.link"))

    assert "d/link" not in found
    assert "d/old" in found


def test_whiteout_of_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    found = applied(tmp_path, member("d/.wh.absent"), member("absent/.wh.x"), member("top/.wh.x"))

    assert found == applied_to_lower_alone(tmp_path.parent / "alone")


def applied_to_lower_alone(target: Path) -> list[str]:
    target.mkdir()
    unpack(target, packed(*LOWER))
    return listing(target)


def test_whiteouts_of_the_lowest_layer_hide_nothing_and_leave_no_trace(tmp_path: Path) -> None:
    unpack(tmp_path, packed(member("a"), member(".wh.a"), member("b/c"), member("b/.wh..wh..opq")))

    assert listing(tmp_path) == ["a", "b/", "b/c"]


OPAQUE_ENTRIES = [folder("d"), member("d/.wh..wh..opq"), member("d/both", data=b"upper"), member("d/sub/new")]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_opaque_folder_hides_lower_content_in_any_order(order: tuple[int, ...], tmp_path: Path) -> None:
    found = applied(tmp_path, *(OPAQUE_ENTRIES[index] for index in order))

    assert found == ["d/", "d/both", "d/sub/", "d/sub/new", "top"]
    assert (tmp_path / "d" / "both").read_bytes() == b"upper"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_folder_removed_and_made_anew_in_one_layer_is_new(order: tuple[int, ...], tmp_path: Path) -> None:
    entries = [member(".wh.d"), folder("d", 0o700), member("d/new")]

    assert applied(tmp_path, *(entries[index] for index in order)) == ["d/", "d/new", "top"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(2))), ids=str)
def test_file_removed_and_written_anew_in_one_layer_is_new(order: tuple[int, ...], tmp_path: Path) -> None:
    entries = [member(".wh.top"), member("top", data=b"new")]

    applied(tmp_path, *(entries[index] for index in order))

    assert (tmp_path / "top").read_bytes() == b"new"


def test_opaque_root_hides_everything_below(tmp_path: Path) -> None:
    assert applied(tmp_path, member("only"), member(".wh..wh..opq")) == ["only"]


def test_hardlink_reaches_into_lower_layers(tmp_path: Path) -> None:
    applied(tmp_path, hardlink("again", "d/both"))

    assert (tmp_path / "again").read_bytes() == b"lower"


def test_folder_merges_with_the_lower_one_and_takes_its_mode(tmp_path: Path) -> None:
    found = applied(tmp_path, folder("d", 0o750), member("d/new"))

    assert {"d/old", "d/new"} <= set(found)
    assert os.stat(tmp_path / "d").st_mode & 0o777 == 0o750


def test_lower_folder_that_forbids_writing_is_written_by_upper_layers(tmp_path: Path) -> None:
    unpack(tmp_path, packed(folder("closed", 0o555)), packed(member("closed/new")))

    assert listing(tmp_path) == ["closed/", "closed/new"]
    assert os.stat(tmp_path / "closed").st_mode & 0o777 == 0o555


def test_three_layers_hide_and_bring_back(tmp_path: Path) -> None:
    unpack(tmp_path, packed(*LOWER), packed(member(".wh.d")), packed(member("d/again")))

    assert listing(tmp_path) == ["d/", "d/again", "top"]


def test_bookkeeping_of_aufs_is_left_out(tmp_path: Path) -> None:
    found = applied(tmp_path, folder(".wh..wh.plnk"), member(".wh..wh.plnk/123.456"), member(".wh..wh.aufs"))

    assert not any(".wh." in name for name in found)
