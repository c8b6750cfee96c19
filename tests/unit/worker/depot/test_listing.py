"""What is listed of what lies in the folders, and what runs for a name."""

import json
import sys
from itertools import count
from pathlib import Path

import anyio
import pytest

from remuda.worker.depot.layout import DepotLayout
from remuda.worker.depot.listing import Listing, changes, find_run_file, listing, scan
from tests.support.waiting import wait_until


@pytest.fixture
def places(tmp_path: Path) -> DepotLayout:
    return DepotLayout(tmp_path / "backends", tmp_path / "system", tmp_path / "blobs")


def folder(root: Path, name: str, *, runs: bool = True, **metadata: str) -> Path:
    """As LocalAI leaves one."""
    path = root / name
    path.mkdir(parents=True)
    if runs:
        (path / "run.sh").write_text("#!/bin/sh")
    if metadata:
        (path / "metadata.json").write_text(json.dumps({"name": name, **metadata}, indent=2))
    return path


def listed(places: DepotLayout, capability: str = "default") -> Listing:
    return listing(scan(places), places.backends, capability)


def test_a_folder_that_localai_made_is_listed_with_its_metadata(places: DepotLayout) -> None:
    folder(places.backends, "cpu-x", alias="x", gallery_url="https://example.org", digest="sha256:1")

    found = listed(places)

    assert [one.name for one in found.backends] == ["cpu-x", "x"]
    assert [(one.name, one.metadata.digest) for one in found.reported] == [("cpu-x", "sha256:1")]


def test_folders_without_a_run_file_and_those_being_replaced_are_not(places: DepotLayout) -> None:
    for name in ("x.install-tmp", "x.install-backup", "x.upgrade-tmp", "x.backup", ".remuda"):
        folder(places.backends, name)
    folder(places.backends, "empty", runs=False)

    assert listed(places).backends == ()


def test_own_folders_come_before_those_of_the_system(places: DepotLayout) -> None:
    folder(places.system, "both")
    folder(places.system, "theirs")
    own = folder(places.backends, "both", version="2")

    found = {one.name: one for one in listed(places).backends}

    assert (found["both"].folder, found["both"].system) == (own, False)
    assert found["theirs"].system


def test_a_meta_backend_runs_what_it_stands_for(places: DepotLayout) -> None:
    build = folder(places.backends, "cpu-x", version="1")
    folder(places.backends, "x", runs=False, meta_backend_for="cpu-x")

    meta = listed(places).get("x")

    assert meta is not None
    assert meta.meta
    assert meta.run_file == build / "run.sh"
    assert [one.name for one in listed(places).reported] == ["cpu-x", "x"]


def test_an_alias_hides_a_meta_backend_of_the_same_name(places: DepotLayout) -> None:
    folder(places.backends, "cpu-x", alias="x")
    folder(places.backends, "x", runs=False, meta_backend_for="cpu-x")

    assert [one.name for one in listed(places).reported] == ["cpu-x"]


@pytest.mark.parametrize(
    ("capability", "chosen"),
    [("nvidia-cuda-12", "cuda12-x"), ("amd", "rocm-x"), ("default", "cpu-x"), ("metal", "cpu-x")],
)
def test_an_alias_means_the_build_that_suits_the_machine(
    places: DepotLayout, capability: str, chosen: str
) -> None:
    for name in ("rocm-x", "cuda12-x", "cpu-x"):
        folder(places.backends, name, alias="x")

    found = listed(places, capability).get("x")

    assert found is not None
    assert found.folder.name == chosen


@pytest.mark.parametrize("text", ["{", "[]", '{"name": 3}', "\0", "\xff"])
def test_metadata_that_cannot_be_read_costs_one_entry_only(places: DepotLayout, text: str) -> None:
    folder(places.backends, "good", version="1")
    bad = folder(places.backends, "bad")
    (bad / "metadata.json").write_bytes(text.encode("latin-1"))

    found = listed(places)

    assert [one.name for one in found.backends] == ["good"]
    assert len(found.problems) == 1
    assert "bad/metadata.json" in found.problems[0]


def test_a_meta_backend_cannot_lead_out_of_the_folder(places: DepotLayout) -> None:
    folder(places.backends, "x", runs=False, meta_backend_for="../../bin")

    found = listed(places)

    assert found.backends == ()
    assert "not a backend" in found.problems[0]


def test_run_files_are_looked_for_in_order(places: DepotLayout) -> None:
    def found(name: str = "x") -> Path | None:
        return find_run_file(places, listed(places), name)

    assert found() is None
    expected: list[Path] = []
    for path in (
        places.system / "x" / "x",
        places.backends / "x" / "x",
        places.backends / "x" / "run.sh",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        assert found() == path
        expected.append(path)
    assert found("../x") is None


pytestmark = pytest.mark.anyio
NEVER_S = 3600.0


class Seen:
    def __init__(self) -> None:
        self.changes = 0

    async def count(self, folder: Path, every_s: float) -> None:
        async for _ in changes([folder], every_s):
            self.changes += 1


async def test_the_kernel_says_when_something_was_installed(tmp_path: Path) -> None:
    seen, numbers = Seen(), count()

    def installed_and_seen() -> bool:
        """Again and again, for the first may come before anybody watches."""
        (tmp_path / f"backend-{next(numbers)}").mkdir()
        return seen.changes > 0

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(seen.count, tmp_path, NEVER_S)
        await wait_until(installed_and_seen)
        tasks.cancel_scope.cancel()


async def test_without_the_kernel_and_for_folders_that_are_made_later_it_is_found_by_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "other")
    seen, folder, numbers = Seen(), tmp_path / "backends", count()

    def installed_and_seen() -> bool:
        (folder / f"backend-{next(numbers)}").mkdir(parents=True)
        return seen.changes > 0

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(seen.count, folder, 0.01)
        await wait_until(installed_and_seen)
        tasks.cancel_scope.cancel()
