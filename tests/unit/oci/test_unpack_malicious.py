"""Archives that try to get out, to fill the disk or to confuse: each is refused by name and harms nothing."""

import gzip
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import zstandard

from remuda.oci.unpack import ArchiveRefused, UnpackLimits
from tests.support.archives import Member, folder, hardlink, member, packed, symlink, unpack

Snapshot = dict[str, tuple[int, int, bytes]]

SMALL = UnpackLimits(
    entries_max=50,
    bytes_max=4 << 20,
    file_bytes_max=1 << 20,
    depth_max=20,
    path_bytes_max=1000,
    metadata_bytes_max=64 << 10,
    sparse_segments_max=100,
    ratio_free_bytes=256 << 10,
)


def pax(
    records: dict[str, str], name: str = "named", data: bytes = b"", kind: bytes = tarfile.REGTYPE
) -> bytes:
    """One entry behind a pax header that holds exactly these records."""
    body = b""
    for key, value in records.items():
        rest = f" {key}={value}\n".encode()
        length = len(rest)
        while length != len(rest) + len(str(length)):
            length = len(rest) + len(str(length))
        body += str(length).encode() + rest
    header, _ = member("pax", tarfile.XHDTYPE)
    header.size = len(body)
    info, _ = member(name, kind)
    info.size = len(data)
    blocks = [header.tobuf(), padded(body), info.tobuf(), padded(data), bytes(1024)]
    return b"".join(blocks)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def with_size(name: str, field: bytes) -> bytes:
    """An entry whose size field holds these bytes, the checksum put right."""
    header = bytearray(member(name)[0].tobuf())
    header[124:136] = field.ljust(12, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


def old_sparse(name: str, offset: int, size: int, real_size: int, data: bytes) -> bytes:
    header = bytearray(member(name, tarfile.GNUTYPE_SPARSE)[0].tobuf(format=tarfile.GNU_FORMAT))
    header[124:136] = b"%011o\0" % len(data)
    header[386:410] = b"%011o\0%011o\0" % (offset, size)
    header[483:495] = b"%011o\0" % real_size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + padded(data) + bytes(1024)


EVIL = b"evil"
NOISE = os.urandom(90_000)
# Name: the layers, a word that must stand in the message (the entry), and why it is refused.
MALICIOUS: dict[str, tuple[list[bytes], str, str]] = {
    "absolute path": ([packed(member("/tmp/evil", data=EVIL))], "/tmp/evil", "absolute"),
    "climbing path": ([packed(member("../evil", data=EVIL))], "../evil", "'..'"),
    "climbing from inside": ([packed(member("a/../../evil", data=EVIL))], "a/../../evil", "'..'"),
    "climbing to a sibling inside": ([packed(member("a/../evil"))], "a/../evil", "'..'"),
    "climbing folder": ([packed(folder("../evil"))], "../evil", "'..'"),
    "climbing whiteout": ([packed(member("a")), packed(member("../.wh.canary"))], "../.wh.canary", "'..'"),
    "whiteout of the parent": ([packed(member("a")), packed(member(".wh..."))], ".wh...", "names no file"),
    "whiteout of nothing": ([packed(member("a")), packed(member("b/.wh."))], "b/.wh.", "names no file"),
    "entry inside a whiteout": ([packed(member(".wh.a/b"))], ".wh.a/b", "inside a whiteout"),
    "through a relative link": ([packed(symlink("a", "b"), member("a/evil"))], "a/evil", "below a"),
    "through an absolute link": ([packed(symlink("a", "{canary}"), member("a/evil"))], "a/evil", "below a"),
    "through a link of a lower layer": (
        [packed(symlink("a", "{canary}")), packed(member("a/evil", data=EVIL))],
        "a/evil",
        "below a",
    ),
    "folder through a link": ([packed(symlink("a", "{canary}"), folder("a/evil"))], "a/evil", "below a"),
    "link through a link": ([packed(symlink("a", "{canary}"), symlink("a/evil", "x"))], "a/evil", "below a"),
    "folder replaced by a link": (
        [packed(folder("a"), member("a/b"), symlink("a", "{canary}"), member("a/evil"))],
        "a/evil",
        "below a",
    ),
    "deep folder replaced by a link": (
        [packed(member("a/b/c/d"), symlink("a/b", "{canary}"), member("a/b/c/evil"))],
        "a/b/c/evil",
        "below a/b",
    ),
    "through a file": ([packed(member("a"), member("a/evil"))], "a/evil", "below a"),
    "relative link that leads out": ([packed(symlink("a", "../canary"))], "a", "leads out"),
    "deep link that leads out": ([packed(symlink("a/b/c", "../x/../../../canary"))], "a/b/c", "leads out"),
    "empty link": ([packed(symlink("a", ""))], "a", "to nothing"),
    "endless link": ([packed(symlink("a", "x/" * 2000))], "a", "4000 bytes"),
    "hard link to an absolute path": ([packed(hardlink("a", "{canary}/file"))], "a", "absolute"),
    "hard link that climbs": ([packed(hardlink("a", "../canary/file"))], "a", "'..'"),
    "hard link to nothing": ([packed(hardlink("a", "absent"))], "a", "absent, where no file is"),
    "hard link to a link": ([packed(symlink("l", "{canary}/file"), hardlink("a", "l"))], "a", "no file"),
    "hard link through a link": ([packed(symlink("l", "{canary}"), hardlink("a", "l/file"))], "a", "l/file"),
    "hard link to a folder": ([packed(folder("d"), hardlink("a", "d"))], "a", "where no file is"),
    "hard link to the root": ([packed(hardlink("a", "."))], "a", "folder itself"),
    "hard link to itself": ([packed(member("a"), hardlink("a", "./a"))], "a", "to itself"),
    "hard link in place of what it links": ([packed(member("a/b"), hardlink("a", "a/b"))], "a", "to itself"),
    "character device": ([packed(member("null", tarfile.CHRTYPE))], "null", "a character device"),
    "block device": ([packed(member("sda", tarfile.BLKTYPE))], "sda", "a block device"),
    "fifo": ([packed(member("pipe", tarfile.FIFOTYPE))], "pipe", "a fifo"),
    "unknown type": ([packed(member("odd", b"Z"))], "odd", "unknown type"),
    "file without a name": ([packed(member("./", tarfile.SYMTYPE, "x"))], "./", "without a name"),
    "NUL in a name": ([pax({"path": "good\0evil"})], "good\\x00evil", "NUL"),
    "NUL in a link": ([pax({"linkpath": "a\0b"}, "l", kind=tarfile.SYMTYPE)], "l", "NUL"),
    "name of 300 characters": ([packed(member("n" * 300))], "n" * 190, "longer than 255"),
    "path of 2000 characters": ([packed(member("/".join(["p" * 199] * 10)))], "p" * 190, "bytes long"),
    "folders without end": ([packed(folder("d/" * 30))], "d/d/d", "30 folders deep"),
    "too many entries": ([packed(*(member(f"f{i}") for i in range(51)))], "f50", "more than 50 entries"),
    "too many entries over two layers": (
        [packed(*(member(f"f{i}") for i in range(30))), packed(*(member(f"g{i}") for i in range(30)))],
        "g20",
        "more than 50 entries",
    ),
    "a file too large": ([packed(member("big", data=bytes((1 << 20) + 1)))], "big", "at most 1.0 MiB"),
    "too much in all": ([packed(*(member(f"b{i}", data=bytes(1 << 20)) for i in range(5)))], "b4", "4.0 MiB"),
    "gzip bomb": ([gzip.compress(packed(member("zeros", data=bytes(1 << 20))))], "zeros", "bomb"),
    "zstd bomb": ([zstandard.compress(packed(member("zeros", data=bytes(1 << 20))))], "zeros", "bomb"),
    "bomb behind the end": (
        [gzip.compress(packed(member("last")) + bytes(1 << 20))],
        "what follows last",
        "bomb",
    ),
    "sparse file of an exabyte": ([old_sparse("hole", 0, 0, 1 << 32, b"")], "hole", "at most 1.0 MiB"),
    "sparse files that add up": (
        [b"".join(old_sparse(f"h{i}", 0, 0, 1 << 20, b"")[:512] for i in range(5)) + bytes(1024)],
        "h4",
        "4.0 MiB",
    ),
    "sparse map beyond the file": ([old_sparse("hole", 1000, 4, 100, EVIL)], "hole", "does not fit"),
    "sparse map without data": ([old_sparse("hole", 0, 400, 400, EVIL)], "hole", "does not fit"),
    "sparse map that overlaps": (
        [pax({"GNU.sparse.map": "0,4,2,4", "GNU.sparse.size": "9"}, "hole", b"12345678")],
        "hole",
        "overlaps",
    ),
    "sparse map with many parts": (
        [pax({"GNU.sparse.map": ",".join(["0,0"] * 101), "GNU.sparse.size": "9"}, "hole")],
        "hole",
        "more than 100 parts",
    ),
    "sparse map that breaks off": (
        [pax({"GNU.sparse.map": "0,4,2", "GNU.sparse.size": "9"}, "hole", b"1234")],
        "hole",
        "breaks off",
    ),
    "huge pax header": ([pax({"comment": "c" * 70_000})], "start of the archive", "at most 65536"),
    "damaged pax header": ([pax({"path": "x"}).replace(b"9 path=x", b"8 path=x")], "start", "damaged"),
    "pax header of wrong length": ([pax({"path": "x"}).replace(b"9 path=x", b"99999999")], "start", "pax"),
    "pax size that is no number": ([pax({"size": "-5"})], "named", "not a number"),
    "pax time that is no number": ([pax({"mtime": "nan"})], "named", "not a number"),
    "headers without an entry": ([pax({"path": "x"})[:1024] * 12], "start of the archive", "more than 8"),
    "negative size": ([with_size("minus", b"\xff" * 12)], "minus", "negative"),
    "size that is no number": ([with_size("letters", b"12zz")], "letters", "not a number"),
    "size beyond the archive": ([with_size("large", b"00000040000")], "large", "breaks off"),
    "damaged header": ([packed(member("a")) [:512] + b"q" * 1024], "what follows a", "checksum"),
    "no end": ([packed(member("a", data=EVIL))[:1024]], "what follows a", "breaks off"),
    "nothing at all": ([b""], "start of the archive", "breaks off"),
    "not an archive": ([b"<html>" * 200], "start of the archive", "no tar archive"),
    "another packing": ([b"BZh91AY&SY" + bytes(600)], "start of the archive", "bzip2"),
    "gzip that breaks off": ([gzip.compress(packed(member("a", data=NOISE)))[:-9000]], "a", "breaks off"),
    "gzip that is damaged": ([gzip.compress(packed(member("a")))[:-8] + bytes(8)], "a", "damaged"),
    "gzip and then something else": ([gzip.compress(packed(member("a"))) + b"trash"], "a", "damaged"),
    "zstd that breaks off": (
        [zstandard.compress(packed(member("a", data=NOISE)))[:-9000]],
        "a",
        "breaks off",
    ),
    "zstd that is damaged": ([b"\x28\xb5\x2f\xfd" + b"\xff" * 600], "start of the archive", "damaged"),
    "archive behind a block of zeros": (
        [packed(member("a"))[:512] + bytes(512) + packed(member("b"))],
        "what follows a",
        "goes on",
    ),
}  # fmt: skip


def snapshot(root: Path) -> Snapshot:
    """Everything that writing anywhere below would change."""
    found = {}
    for base, folders, files in os.walk(root):
        for name in (".", *folders, *files):
            path = Path(base, name)
            about = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[str(path)] = about.st_mtime_ns, about.st_mode, content
    return found


@pytest.mark.parametrize("name", MALICIOUS)
def test_malicious_archive_is_refused_by_name_and_writes_nothing_outside(name: str, tmp_path: Path) -> None:
    layers, entry, reason = MALICIOUS[name]
    canary, target = tmp_path / "canary", tmp_path / "beside" / "target"
    for made in (canary / "folder", target):
        made.mkdir(parents=True)
    (canary / "file").write_text("untouched")
    before = snapshot(canary), sorted(os.listdir(tmp_path)), sorted(os.listdir(tmp_path / "beside"))

    with pytest.raises(ArchiveRefused) as refused:
        unpack(target, *(aimed(layer, canary) for layer in layers), limits=SMALL)

    where, _, why = refused.value.message.partition(": ")
    assert entry in where
    assert reason in why
    assert (snapshot(canary), sorted(os.listdir(tmp_path)), sorted(os.listdir(tmp_path / "beside"))) == before


def aimed(layer: bytes, canary: Path) -> bytes:
    """The same archive, its links pointed at a folder that only this test run knows."""
    if b"{canary}" not in layer:
        return layer
    buffer = BytesIO()
    with (
        tarfile.open(fileobj=BytesIO(layer)) as source,
        tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for info in source:
            info.linkname = info.linkname.replace("{canary}", str(canary))
            archive.addfile(info, source.extractfile(info) if info.isreg() else None)
    return buffer.getvalue()


def test_table_is_long_enough() -> None:
    assert len(MALICIOUS) >= 25


Replacement = Callable[[str], list[Member]]


@pytest.mark.parametrize(
    "replacing",
    [
        lambda outside: [symlink("x", outside), member("x", data=b"new")],
        lambda outside: [member("x", data=b"old"), hardlink("y", "x"), member("x", data=b"new")],
        lambda outside: [folder("x"), symlink("x/y", outside), member("x", data=b"new")],
    ],
    ids=["file over link", "file over hard link", "file over folder"],
)
def test_what_is_in_the_way_is_replaced_and_never_written_through(
    replacing: Replacement, tmp_path: Path
) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.write_text("untouched")
    target.mkdir()

    unpack(target, packed(*replacing(str(outside))))

    assert (target / "x").read_bytes() == b"new"
    assert outside.read_text() == "untouched"
    assert not (target / "y").exists() or (target / "y").read_bytes() == b"old"


def test_folder_over_link_to_a_folder_outside_becomes_a_folder(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()

    unpack(target, packed(symlink("x", str(outside))), packed(folder("x"), member("x/y")))

    assert not (target / "x").is_symlink()
    assert (target / "x" / "y").exists()
    assert os.listdir(outside) == []


@pytest.mark.parametrize("content_only", [True, False], ids=["opaque", "whiteout"])
def test_whiteouts_do_not_reach_through_links(content_only: bool, tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    (outside / "file").touch()
    target.mkdir()

    hiding = "x/.wh..wh..opq" if content_only else "x/.wh.file"
    unpack(target, packed(symlink("x", str(outside))), packed(member(hiding)))

    assert os.listdir(outside) == ["file"]


def test_names_are_shown_without_control_characters(tmp_path: Path) -> None:
    with pytest.raises(ArchiveRefused) as refused:
        unpack(tmp_path, packed(member("../\x1b[2J\nfake line")))

    assert refused.value.message.isprintable()


def test_zstd_that_asks_for_a_huge_window_is_refused(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=20, write_content_size=False)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    layer = writer.compress(packed(member("a", data=b"x" * 3000))) + writer.flush()

    with pytest.raises(ArchiveRefused, match="too much memory"):
        unpack(tmp_path, layer, limits=replace(SMALL, zstd_window_bytes_max=1 << 18))
