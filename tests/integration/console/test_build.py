"""The built files are those that the sources in `ui/` make."""

import gzip
import re
from pathlib import Path

import pytest
from tools.build_console import BUILT, RECORD, TYPES, build, source_hash, used_messages, write_types

FIRST_LOAD_BYTES_MAX = 150_000


def built_files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        # How well bytes are packed may differ from one processor to another; what is packed may not.
        if path.is_file() and path.suffix not in (".gz", ".br")
    }


def test_the_built_files_are_of_these_sources() -> None:
    built_from = (BUILT / RECORD).read_text().strip()
    assert built_from == source_hash(), "run `python -m tools.build_console`"


def test_the_types_of_messages_are_those_of_the_api() -> None:
    """By their fields, and which of them may be missing; their types are compared when all is built."""
    written: dict[str, set[str]] = {}
    own = set[str]()
    for line in TYPES.read_text().splitlines():
        if message := re.fullmatch(r" {8}(\w+): \{", line):
            own = written.setdefault(message[1], set())
        elif field := re.match(r" {12}(\w+\??):", line):
            own.add(field[1])
    told = {
        name: {one if one in schema.get("required", ()) else f"{one}?" for one in schema["properties"]}
        for name, schema in used_messages().items()
        if schema.get("properties")
    }
    assert {name: written.get(name) for name in told} == told, "run `python -m tools.build_console --types`"


def test_packed_files_hold_what_is_beside_them() -> None:
    packed = list(BUILT.rglob("*.gz"))
    assert packed
    for path in packed:
        assert gzip.decompress(path.read_bytes()) == path.with_suffix("").read_bytes()
        assert path.with_suffix(".br").is_file()


def test_the_first_load_is_small_and_from_here_alone() -> None:
    page = (BUILT / "index.html").read_text()
    loaded = [path for path in BUILT.rglob("*.gz") if path.with_suffix("").name in page]
    assert len(loaded) >= 2, "a script and its style"
    assert sum(path.stat().st_size for path in loaded) < FIRST_LOAD_BYTES_MAX
    assert "://" not in page


@pytest.mark.long  # Half a minute of CPU; what the built files are of is checked each time.
def test_building_again_gives_the_same_bytes(tmp_path: Path) -> None:
    build(tmp_path)
    assert built_files(tmp_path) == built_files(BUILT)


@pytest.mark.long
def test_writing_the_types_again_gives_the_same_bytes(tmp_path: Path) -> None:
    write_types(tmp_path / "schema.d.ts")
    assert (tmp_path / "schema.d.ts").read_text() == TYPES.read_text()
