"""Ordinary archives come out as they went in, whoever wrote them and however they are packed."""

import errno
import gzip
import os
import stat
import subprocess
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
import zstandard

from remuda.oci.unpack import (
    ArchiveRefused,
    UnpackCancelled,
    UnpackFailed,
    UnpackLimits,
    fsync_tree,
    unpack_image,
)
from tests.support.archives import (
    MTIME,
    Member,
    described,
    folder,
    hardlink,
    listing,
    member,
    packed,
    symlink,
    unpack,
)
from tests.support.debian import debian_program

LONG = "long/" + "n" * 120 + "/" + "m" * 200
ORDINARY: list[Member] = [
    folder("./"),
    folder("bin", 0o555),
    member("bin/run", data=b"#!/bin/sh\n", mode=0o755),
    member("bin/setuid", mode=0o6755),
    folder("sticky", 0o1777),
    member("unnamed/folder/file", data=b"x" * 70_000),
    member(LONG, data=b"long"),
    member("empty"),
    member("größe.txt", data=b"utf-8", mode=0o600),
    symlink("current", "bin/run"),
    symlink("unnamed/up", "../bin/run"),
    symlink("absolute", "/usr/lib/libcuda.so.1"),
    symlink("z" * 150, "bin/" + "t" * 150),
    hardlink("bin/again", "./bin/run"),
]


def zstd_frames(data: bytes) -> bytes:
    """Two frames with a skippable one between and after, as tools that index layers write them."""
    skippable = b"\x50\x2a\x4d\x18" + (7).to_bytes(4, "little") + b"skipped"
    half = len(data) // 2
    return zstandard.compress(data[:half]) + skippable + zstandard.compress(data[half:]) + skippable


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "gzip in members": lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]) + bytes(100),
    "zstd": zstandard.compress,
    "zstd in frames": zstd_frames,
    "zstd after a skippable frame": lambda data: b"\x5f\x2a\x4d\x18" + bytes(4) + zstandard.compress(data),
}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archive_comes_out_as_it_went_in(packing: str, form: int, tmp_path: Path) -> None:
    fits = [entry for entry in ORDINARY if form != tarfile.USTAR_FORMAT or len(entry[0].name) < 140]

    unpack(tmp_path, PACKINGS[packing](packed(*fits, form=form)))

    assert (tmp_path / "bin" / "run").read_bytes() == b"#!/bin/sh\n"
    assert stat.S_IMODE((tmp_path / "bin" / "run").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "bin").stat().st_mode) == 0o555
    assert (tmp_path / "bin").stat().st_mtime == (tmp_path / "bin" / "run").stat().st_mtime == MTIME
    assert (tmp_path / "unnamed" / "folder" / "file").read_bytes() == b"x" * 70_000
    assert (tmp_path / "größe.txt").read_bytes() == b"utf-8"
    assert os.readlink(tmp_path / "unnamed" / "up") == "../bin/run"
    assert (tmp_path / "bin" / "again").samefile(tmp_path / "bin" / "run")
    if form != tarfile.USTAR_FORMAT:
        assert (tmp_path / LONG).read_bytes() == b"long"
        assert os.readlink(tmp_path / ("z" * 150)) == "bin/" + "t" * 150


def test_absolute_links_are_kept_as_written(tmp_path: Path) -> None:
    unpack(tmp_path, packed(symlink("lib/libcuda.so", "/usr/lib/libcuda.so.1")))

    assert os.readlink(tmp_path / "lib" / "libcuda.so") == "/usr/lib/libcuda.so.1"


def test_no_bit_that_raises_rights_survives(tmp_path: Path) -> None:
    unpack(tmp_path, packed(member("file", mode=0o7751), folder("folder", 0o7770)))

    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o751
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o770


def test_the_folder_itself_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)

    unpack(target, packed(folder("./", 0o000), member("a")))

    assert stat.S_IMODE(target.stat().st_mode) == 0o700


def test_the_last_of_two_entries_of_one_name_wins(tmp_path: Path) -> None:
    first = [member("a", data=b"1"), folder("b"), member("b/x"), symlink("c", "a"), member("d")]
    second = [member("a", data=b"2"), member("b", data=b"file"), folder("c"), symlink("d", "a")]

    unpack(tmp_path, packed(*first, *second))

    assert (tmp_path / "a").read_bytes() == b"2"
    assert (tmp_path / "b").read_bytes() == b"file"
    assert (tmp_path / "c").is_dir()
    assert os.readlink(tmp_path / "d") == "a"


def test_times_no_disk_can_keep_are_clamped(tmp_path: Path) -> None:
    early, late = member("early")[0], member("late")[0]
    early.mtime, late.mtime = -(1 << 40), 1 << 50

    unpack(tmp_path, packed((early, b""), (late, b"")))

    assert (tmp_path / "early").stat().st_mtime < 0
    assert (tmp_path / "late").stat().st_mtime > 1 << 33


@pytest.mark.parametrize(
    "options",
    [
        ["--format=gnu", "--sparse"],
        ["--format=posix", "--sparse"],
        ["--format=posix", "--sparse", "--sparse-version=0.0"],
        ["--format=posix", "--sparse", "--sparse-version=0.1"],
        ["--format=oldgnu"],
        ["--format=gnu", "-z"],
    ],
    ids=" ".join,
)
def test_what_gnu_tar_writes_is_read(options: list[str], tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    unpack(source, packed(*ORDINARY[1:]))
    with (source / "sparse").open("wb") as sparse:
        for position in range(0, 6_000_000, 200_000):  # More segments than a header has room for.
            sparse.seek(position)
            sparse.write(b"data" * 1024)
        sparse.truncate(7_000_000)

    archive = tmp_path / "archive"
    subprocess.run(["tar", "-cf", archive, *options, "-C", source, "."], check=True, timeout=60)
    unpack(target, archive)

    assert described(target) == described(source)


@pytest.mark.timeout(600)  # May have to be installed.
def test_what_busybox_writes_is_read(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    unpack(source, packed(*(entry for entry in ORDINARY[1:] if len(entry[0].name) < 90)))

    archive = tmp_path / "archive"
    busybox = debian_program("busybox", "busybox")
    subprocess.run([busybox, "tar", "-czf", archive, "-C", source, "."], check=True, timeout=60)
    unpack(target, archive)

    assert described(target) == described(source)


def test_directories_of_the_time_before_types_are_read(tmp_path: Path) -> None:
    old = member("old/", tarfile.AREGTYPE)

    unpack(tmp_path, packed(old, member("old/file")))

    assert listing(tmp_path) == ["old/", "old/file"]


def test_progress_adds_up_to_the_layers_as_stored(tmp_path: Path) -> None:
    layers = [gzip.compress(packed(member("a", data=os.urandom(400_000)))), packed(member("b"))]
    seen: list[int] = []

    unpack_image([BytesIO(layer) for layer in layers], tmp_path, UnpackLimits(), seen.append, lambda: False)

    assert sum(seen) == sum(map(len, layers))


def test_layer_that_arrives_byte_by_byte_is_read(tmp_path: Path) -> None:
    class Trickle(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(1)

    unpack(tmp_path, Trickle(gzip.compress(packed(member("a", data=b"slow")))))

    assert (tmp_path / "a").read_bytes() == b"slow"


@pytest.mark.parametrize("after", [0, 1, 5, 20])
def test_unpacking_stops_when_told(after: int, tmp_path: Path) -> None:
    layer = packed(*(member(f"f{number}", data=bytes(300_000)) for number in range(10)))
    questions = 0

    def cancelled() -> bool:
        nonlocal questions
        questions += 1
        return questions > after

    with pytest.raises(UnpackCancelled):
        unpack_image([BytesIO(layer)], tmp_path, UnpackLimits(), lambda _: None, cancelled)
    assert questions == after + 1


def test_open_files_are_closed_whatever_happens(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))

    with pytest.raises(ArchiveRefused):
        unpack(tmp_path, packed(member("a/b/c/d", data=b"x"), hardlink("a/e", "a/b/c/d"), member("../x")))

    assert len(os.listdir("/dev/fd")) == before


def refuse_links(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_links_become_copies_where_the_file_system_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "symlink", refuse_links)
    monkeypatch.setattr(os, "link", refuse_links)
    layer = packed(
        symlink("lib.so", "lib.so.1"),
        symlink("lib.so.1", "deep/lib.so.1.2"),
        symlink("rooted", "/deep/lib.so.1.2"),
        symlink("dangling", "/usr/lib/absent"),
        symlink("circle", "circle"),
        symlink("replaced", "lib.so"),
        member("deep/lib.so.1.2", data=b"library", mode=0o755),
        hardlink("hard", "deep/lib.so.1.2"),
        member("replaced", data=b"file"),
    )

    unpack(tmp_path, layer)

    for name in ("lib.so", "lib.so.1", "rooted", "hard"):
        assert (tmp_path / name).read_bytes() == b"library"
        assert (tmp_path / name).lstat().st_mtime == MTIME
        assert stat.S_IMODE((tmp_path / name).lstat().st_mode) == 0o755
    assert (tmp_path / "replaced").read_bytes() == b"file"
    assert not os.path.lexists(tmp_path / "dangling")
    assert not os.path.lexists(tmp_path / "circle")


def test_whiteouts_hide_links_that_would_become_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "symlink", refuse_links)
    lower = packed(member("file"), symlink("a/hidden", "../file"), symlink("b", "file"))

    unpack(tmp_path, lower, packed(member("a/.wh..wh..opq"), member(".wh.b"), symlink("a/kept", "../file")))

    assert listing(tmp_path) == ["a/", "a/kept", "file"]


@pytest.mark.parametrize("target", ["folder", "."])
def test_link_to_a_folder_is_refused_where_links_become_copies(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "symlink", refuse_links)

    if target == ".":
        unpack(tmp_path, packed(symlink("link", target)))  # The image's own root: nothing to copy.
        assert listing(tmp_path) == []
    else:
        with pytest.raises(ArchiveRefused, match="link: it is a symbolic link to a folder"):
            unpack(tmp_path, packed(folder("folder"), symlink("link", target)))


def test_a_refused_write_names_the_entry_and_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", fail)

    with pytest.raises(UnpackFailed, match=f"a/b into {tmp_path} failed: Input/output error"):
        unpack(tmp_path, packed(member("a/b", data=b"x")))


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_tree_is_synced_with_links_and_unreadable_files(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    unpack(tmp_path, packed(member("a/file", mode=0o200), symlink("a/link", "nowhere"), folder("b")))

    fsync_tree(tmp_path)

    assert listing(tmp_path) == ["a/", "a/file", "a/link", "b/"]
