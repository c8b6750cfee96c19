"""Whatever tree goes in comes out; whatever bytes come in, unpacking ends and refuses what it cannot read."""

import gzip
import os
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.oci.unpack import ArchiveRefused, UnpackLimits
from tests.support.archives import described, folder, hardlink, member, packed, symlink, unpack
from tests.support.examples import examples

PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
}
FORMATS = [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
TIGHT = UnpackLimits(entries_max=1000, bytes_max=8 << 20, file_bytes_max=4 << 20, ratio_free_bytes=4 << 20)

names = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60
).filter(lambda name: name not in (".", "..") and not name.startswith(".wh.") and len(name.encode()) <= 255)
modes = st.integers(0, 0o777)
contents = st.one_of(
    st.binary(max_size=2000), st.integers(0, 600_000).map(lambda size: (b"0123456789abcdef" * 37_501)[:size])
)
# A folder is a map of names; a file its content and mode; a link its text; a number picks a file to link to.
Node = dict[str, "Node"] | tuple[bytes, int] | str | int
nodes: st.SearchStrategy[Node] = st.recursive(
    st.one_of(st.tuples(contents, modes), names, st.integers(0, 100)),
    lambda children: st.dictionaries(names, children, max_size=6),
    max_leaves=15,
)
trees = st.dictionaries(names, nodes, max_size=6)


def plant(root: Path, tree: dict[str, Node], files: list[Path]) -> None:
    """Make the tree on disk. Folders stay writable, so that a test run by anyone can remove them."""
    for name, node in tree.items():
        path = root / name
        if isinstance(node, dict):
            path.mkdir()
            plant(path, node, files)
        elif isinstance(node, tuple):
            path.write_bytes(node[0])
            path.chmod(node[1] | 0o400)
            files.append(path)
        elif isinstance(node, str):
            path.symlink_to(node)
        elif files:
            path.hardlink_to(files[node % len(files)])


@settings(max_examples=examples(60), deadline=None)
@given(tree=trees, packing=st.sampled_from(sorted(PACKINGS)), form=st.sampled_from(FORMATS))
def test_any_tree_comes_out_byte_for_byte(tree: dict[str, Node], packing: str, form: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        source, target = Path(temporary, "source"), Path(temporary, "target")
        source.mkdir()
        target.mkdir()
        plant(source, tree, [])
        buffer = BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
            archive.add(source, ".")

        unpack(target, PACKINGS[packing](buffer.getvalue()))

        assert described(target) == described(source)


SEEDS = [
    packed(
        folder("d"),
        member("d/file", data=b"data" * 300),
        symlink("d/link", "file"),
        hardlink("d/hard", "d/file"),
        member("n" * 150, data=b"long"),
        form=form,
    )
    for form in FORMATS
]


def check_survives(layer: bytes) -> None:
    """Unpacks or is refused, writes nothing beside the folder, and leaves no file open."""
    before = len(os.listdir("/dev/fd"))
    with tempfile.TemporaryDirectory() as temporary:
        target = Path(temporary, "target")
        target.mkdir()
        with suppress(ArchiveRefused):
            unpack(target, layer, limits=TIGHT)
        assert os.listdir(temporary) == ["target"]
    assert len(os.listdir("/dev/fd")) == before


@settings(max_examples=examples(100), deadline=None)
@given(
    layer=st.binary(max_size=4000),
    magic=st.sampled_from([b"", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"ustar"]),
)
def test_random_bytes_are_refused_or_unpacked(layer: bytes, magic: bytes) -> None:
    check_survives(magic + layer)


@settings(max_examples=examples(200), deadline=None)
@given(
    seed=st.sampled_from(SEEDS),
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=12)), max_size=6),
    cut=st.integers(0, 4000),
    packing=st.sampled_from(sorted(PACKINGS)),
)
def test_changed_archives_are_refused_or_unpacked(
    seed: bytes, changes: list[tuple[int, bytes]], cut: int, packing: str
) -> None:
    check_survives(PACKINGS[packing](mutated(seed, changes, cut)))


@settings(max_examples=examples(100), deadline=None)
@given(
    seed=st.sampled_from(SEEDS),
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=4)), max_size=3),
    cut=st.integers(0, 200),
    packing=st.sampled_from(["gzip", "zstd"]),
)
def test_changed_packed_layers_are_refused_or_unpacked(
    seed: bytes, changes: list[tuple[int, bytes]], cut: int, packing: str
) -> None:
    check_survives(mutated(PACKINGS[packing](seed), changes, cut))


def mutated(data: bytes, changes: list[tuple[int, bytes]], cut: int) -> bytes:
    """Bytes overwritten, the end cut off, and checksums put right again so that changes get past them."""
    changed = bytearray(data)
    for position, piece in changes:
        start = position % len(changed)
        changed[start : start + len(piece)] = piece
    for start in range(0, len(changed) - 511, 512):
        if changed[start + 257 : start + 262] == b"ustar":
            changed[start + 148 : start + 156] = b" " * 8
            changed[start + 148 : start + 156] = b"%06o\0 " % sum(changed[start : start + 512])
    return bytes(changed[: len(changed) - cut])


@pytest.mark.parametrize("seed", SEEDS, ids=["gnu", "pax"])
def test_archive_cut_off_anywhere_is_refused(seed: bytes, tmp_path: Path) -> None:
    end = seed.rstrip(b"\0")
    blocks = -(-len(end) // 512)
    for cut in range(blocks + 1):
        target = tmp_path / str(cut)
        target.mkdir()
        with pytest.raises(ArchiveRefused, match="breaks off"):
            unpack(target, seed[: cut * 512])
