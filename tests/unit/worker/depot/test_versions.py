"""Versions on the shelf, with the process ending before or after every single step."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from remuda.core.errors import NotFound
from remuda.worker.depot.layout import DepotLayout
from remuda.worker.depot.versions import SystemDisk, VersionStore, try_lock

NAME = "b"
STEPS_MAX = 40


class Crash(BaseException):
    """The process ends here."""


class CrashingDisk(SystemDisk):
    """Ends the process at one step: before it, or right after. Every discard may also stop half-way."""

    def __init__(self, at: int, *, after: bool) -> None:
        self._left = at
        self._after = after
        self.crashed = False

    def in_use(self, path: Path) -> bool:
        return False

    def move(self, source: Path, target: Path) -> None:
        self._step(lambda: SystemDisk.move(self, source, target))

    def discard(self, path: Path) -> None:
        self._step(lambda: self._half(path))
        SystemDisk.discard(self, path)

    def mark(self, path: Path) -> None:
        self._step(lambda: SystemDisk.mark(self, path))

    def _half(self, path: Path) -> None:
        if self._left == 0 and path.is_dir():
            (path / "run.sh").unlink(missing_ok=True)

    def _step(self, act: Callable[[], None]) -> None:
        crash = self._left == 0
        if crash and not self._after:
            self.crashed = True
            raise Crash
        act()
        self._left -= 1
        if crash:
            self.crashed = True
            raise Crash


@pytest.fixture
def places(tmp_path: Path) -> DepotLayout:
    return DepotLayout(tmp_path / "backends", tmp_path / "system", tmp_path / "blobs")


def install(shelf: VersionStore, version: str) -> None:
    staging = shelf.stage(NAME)
    (staging / "version").write_text(version)
    (staging / "run.sh").write_text("#!/bin/sh")
    shelf.commit(NAME)


def version_in(folder: Path) -> str:
    """Of a whole folder; half of one fails the test."""
    if not folder.exists():
        return ""
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) == [
        "run.sh",
        "version",
    ]
    return (folder / "version").read_text()


def state(places: DepotLayout) -> tuple[str, str]:
    return version_in(places.installed(NAME)), version_in(places.previous(NAME))


def upgrade(shelf: VersionStore) -> None:
    install(shelf, "2")


def upgrade_twice(shelf: VersionStore) -> None:
    install(shelf, "2")
    install(shelf, "3")


def upgrade_after_proof(shelf: VersionStore) -> None:
    install(shelf, "2")
    shelf.mark_proven(NAME)
    install(shelf, "3")


def upgrade_and_back(shelf: VersionStore) -> None:
    install(shelf, "2")
    shelf.switch_back(NAME)


def back_and_upgrade(shelf: VersionStore) -> None:
    upgrade_and_back(shelf)
    install(shelf, "3")


def remove(shelf: VersionStore) -> None:
    install(shelf, "2")
    shelf.remove(NAME)


@pytest.mark.parametrize(
    ("act", "outcome", "on_the_way"),
    [
        (upgrade, ("2", "1"), {("1", "")}),
        (upgrade_twice, ("3", "1"), {("1", ""), ("2", "1")}),
        (upgrade_after_proof, ("3", "2"), {("1", ""), ("2", "1"), ("2", "")}),
        (upgrade_and_back, ("1", "2"), {("1", ""), ("2", "1")}),
        (back_and_upgrade, ("3", "1"), {("1", ""), ("2", "1"), ("1", "2"), ("1", "")}),
        (remove, ("", ""), {("1", ""), ("2", "1"), ("2", "")}),
    ],
)
def test_a_crash_at_any_step_leaves_one_version_whole(
    places: DepotLayout,
    act: Callable[[VersionStore], None],
    outcome: tuple[str, str],
    on_the_way: set[tuple[str, str]],
) -> None:
    steps = 0
    for after in (False, True):
        for at in range(STEPS_MAX):
            SystemDisk().discard(places.backends)
            install(VersionStore(places), "1")
            disk = CrashingDisk(at, after=after)
            try:
                act(VersionStore(places, disk))
            except Crash:
                version_in(places.installed(NAME))  # Whole, or not there, also before anything is recovered.

            VersionStore(places).abandon(NAME)
            VersionStore(places).settle(NAME)

            assert state(places) in on_the_way | {outcome}, (at, after)
            assert not places.names_in("ready") + places.names_in("trash") + places.names_in("staging")
            if not disk.crashed:
                assert state(places) == outcome
                break
            steps += 1
        else:
            pytest.fail("it has more steps than were tried")
    assert steps > 6


def test_nothing_can_be_switched_back_to_after_the_first_install(places: DepotLayout) -> None:
    shelf = VersionStore(places)
    install(shelf, "1")

    with pytest.raises(NotFound, match="no earlier version"):
        shelf.switch_back(NAME)

    assert state(places) == ("1", "")


def test_a_stray_file_under_the_name_is_replaced(places: DepotLayout) -> None:
    places.backends.mkdir()
    places.installed(NAME).write_text("stray")

    install(VersionStore(places), "1")

    assert state(places) == ("1", "")


def test_folders_that_may_not_be_written_are_removed(places: DepotLayout) -> None:
    shelf = VersionStore(places)
    install(shelf, "1")
    places.installed(NAME).chmod(0o500)

    shelf.remove(NAME)

    assert state(places) == ("", "")


def test_files_that_a_process_runs_from_stay_until_it_has_ended(places: DepotLayout) -> None:
    shelf = VersionStore(places)
    install(shelf, "1")
    with subprocess.Popen(["sleep", "60"], cwd=places.installed(NAME)) as process:
        try:
            upgrade_after_proof(shelf)  # Both versions before may go, and one is in use.
            shelf.mark_proven(NAME)
            used = Path(psutil.Process(process.pid).cwd())
            assert (version_in(used), state(places)) == ("1", ("3", ""))
            assert [path.name for path in places.trash(NAME).iterdir()] == [used.name]
            assert not shelf.is_proven(NAME), "somebody has to look after it"
        finally:
            process.kill()

    shelf.settle(NAME)

    assert places.names_in("trash") == []
    assert shelf.is_proven(NAME)


def test_a_lock_is_held_against_the_same_process_too(places: DepotLayout) -> None:
    with try_lock(places.lock(NAME)) as first, try_lock(places.lock(NAME)) as second:
        assert (first, second) == (True, False)
    with try_lock(places.lock(NAME)) as third:
        assert third
