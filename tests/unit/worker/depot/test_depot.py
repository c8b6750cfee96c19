"""Which blobs leave, and why."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from remuda.oci.blobs import StoredBlob
from remuda.worker.depot.depot import Depot, plan, referenced
from remuda.worker.depot.layout import DepotLayout, Record, write_record

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SINCE = NOW - timedelta(days=14)


def blob(name: str, days: int, size: int = 10) -> StoredBlob:
    return StoredBlob(name, size, NOW - timedelta(days=days))


def leaving(blobs: list[StoredBlob], referenced: set[str], budget: int) -> dict[str, str]:
    return {one.blob.digest: one.why for one in plan(blobs, referenced, budget, SINCE)}


def test_within_the_budget_only_old_and_unreferenced_blobs_leave() -> None:
    blobs = [blob("old", 20), blob("young", 1), blob("old-in-use", 20)]

    assert leaving(blobs, {"old-in-use"}, 100) == {"old": "no installed backend needs it"}


def test_beyond_the_budget_what_no_backend_needs_leaves_first() -> None:
    blobs = [blob("young", 1), blob("old-in-use", 20)]

    gone = leaving(blobs, {"old-in-use"}, 10)

    assert gone == {"young": "the budget of 10 B is exceeded"}


def test_the_budget_holds_also_against_installed_backends() -> None:
    blobs = [blob("a", 3), blob("b", 2), blob("c", 1)]

    assert list(leaving(blobs, {"a", "b", "c"}, 15)) == ["a", "b"]


def test_layers_of_every_version_that_is_kept_are_needed(tmp_path: Path) -> None:
    places = DepotLayout(tmp_path / "backends", tmp_path / "system", tmp_path / "depot")
    folders = {
        "installed": places.backends / "engine",
        "ready": places.ready("engine"),
        "before": places.previous("engine"),
    }
    for layer, folder in folders.items():
        folder.mkdir(parents=True)
        write_record(folder, Record(layers=(layer,)))

    needed = referenced(cast(Depot, SimpleNamespace(places=places)))

    assert needed == {"installed", "ready", "before"}
