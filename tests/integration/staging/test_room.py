"""A worker with a budget for model files, and more models than it can hold. It and its frontend are killed
between what goes and what comes."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.integration.staging.fleet import Fleet, fleet
from tests.support.processes import Json
from tests.support.waiting import wait_until_blocking

MB = 1 << 20
SIZE = 3 * MB


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("small"), ("one",)) as started:
        for name in ("a", "b", "c", "d"):
            started.put(f"{name}.bin", SIZE)
            started.add(name, f"{name}.bin", worker="one", pinned=name == "d")
        node = node_id(started, "one")
        started.frontend.ask("PUT", f"/api/nodes/{node}/model-files-budget", {"value": "7MiB"})
        yield started


def node_id(place: Fleet, name: str) -> str:
    nodes: list[Json] = place.frontend.get("/api/nodes")
    return next(str(node["id"]) for node in nodes if node["name"] == name)


def disk(place: Fleet) -> Json:
    shown: Json = place.frontend.get(f"/api/nodes/{node_id(place, 'one')}/model-files")
    return shown


def fetched(place: Fleet) -> list[str]:
    return sorted(file["path"] for file in disk(place)["files"] if file["fetched"])


def there(place: Fleet) -> list[str]:
    return [name for name in "abcd" if place.file("one", f"{name}.bin").exists()]


def kept(place: Fleet) -> list[str]:
    """Why files there stay."""
    return sorted(filter(None, (file.get("keep", "") for file in disk(place)["files"])))


def replicas_of(place: Fleet, model: str) -> list[Json]:
    """Also those that are being unloaded, which keep the model's files."""
    found: list[Json] = place.frontend.get("/api/replicas")["replicas"]
    return [one for one in found if one["model"] == model]


def unload(place: Fleet, *names: str) -> None:
    for name in names:
        place.frontend.ask("POST", f"/api/models/{name}/unload").raise_for_status()
    wait_until_blocking(
        lambda: not any(replicas_of(place, name) for name in names), what="them to be unloaded"
    )
    wait_until_blocking(lambda: not any(kept(place)), within=30, what="its report")


def command(place: Fleet, *words: str) -> str:
    done = place.place.invoke(*words, "--url", place.frontend.url, data="frontend")
    assert done.exit_code == 0, done.output
    return str(done.stdout)


def test_load_makes_room_with_what_was_not_used_longest(small: Fleet) -> None:
    for name in ("a", "b"):
        assert small.chat(name) == "one two three"
    unload(small, "a", "b")
    assert there(small) == ["a", "b"]
    wait_until_blocking(lambda: fetched(small) == ["a.bin", "b.bin"], within=30, what="both to be reported")

    dry = small.frontend.ask(
        "POST", f"/api/nodes/{node_id(small, 'one')}/model-files/free", {"bytes": MB, "dry_run": True}
    ).json()
    assert [model["name"] for model in dry["models"]] == ["a"]
    assert there(small) == ["a", "b"]

    assert small.chat("c") == "one two three"

    assert there(small) == ["b", "c"]
    (event,) = small.workers["one"].events("model_files_dropped")
    assert event["files"] == ["a.bin"]
    assert small.file("one", "c.bin").stat().st_size == SIZE


def test_what_is_loaded_or_pinned_stays_and_the_refusal_says_so(small: Fleet) -> None:
    """`c` is loaded; `d` takes the place of `b`, and then nothing may go."""
    assert small.chat("d") == "one two three"
    assert there(small) == ["c", "d"]
    small.frontend.ask("POST", "/api/models/d/unload").raise_for_status()
    wait_until_blocking(lambda: not replicas_of(small, "d"), what="d to be unloaded")
    wait_until_blocking(lambda: kept(small) == ["c is loaded", "d is pinned"], within=30, what="its report")

    refused = small.ask_chat("a")

    assert refused.status_code == 503
    for words in ("one: the model's files need 3 MiB", "6 MiB of the 7 MiB", "c is loaded", "d is pinned"):
        assert words in refused.text
    assert there(small) == ["c", "d"]


def test_a_person_can_look_and_make_room_by_command(small: Fleet) -> None:
    shown = command(small, "nodes", "disk", "one")
    assert "c is loaded" in shown
    assert "6.0 MiB, 2 files" in shown
    small.frontend.ask("POST", "/api/models/c/unload").raise_for_status()
    wait_until_blocking(lambda: not replicas_of(small, "c"), what="c to be unloaded")
    words = ("nodes", "free", "one", "--size", "2MB")

    def planned() -> bool:
        plan = json.loads(command(small, *words, "--dry-run", "--json"))
        return [model["name"] for model in plan["models"]] == ["c"]

    wait_until_blocking(planned, within=30, what="c to be able to go")
    assert there(small) == ["c", "d"]

    done = command(small, *words, "--yes")

    assert "removed c (3.0 MiB)" in done
    assert "one: 3.0 MiB freed" in done
    assert there(small) == ["d"]
    assert (small.models / "c.bin").exists()


def worker_killed(place: Fleet) -> None:
    place.workers["one"].kill()
    place.start_worker("one")


def frontend_killed(place: Fleet) -> None:
    place.frontend.kill()
    place.start_frontend()


@pytest.mark.parametrize(
    ("wanted", "goes", "killed"),
    [
        ("a", "", None),
        ("b", "a", worker_killed),
        pytest.param("c", "b", frontend_killed, marks=pytest.mark.long),
    ],
)
def test_kill_between_what_goes_and_what_comes_loses_nothing_else(
    small: Fleet, wanted: str, goes: str, killed: Callable[[Fleet], None] | None
) -> None:
    """`d`, which is pinned, is there all the time; the load ends well, however it is gone on with."""
    assert there(small) == sorted(filter(None, ("d", goes)))
    known = sorted(f"{name}.bin" for name in ("d", goes) if name)
    wait_until_blocking(lambda: fetched(small) == known, within=30, what="its report")
    if killed is None:  # It was refused above, which is remembered for some seconds.
        wait_until_blocking(lambda: small.ask_chat(wanted).is_success, within=60, what="room for it")
    else:
        small.load(wanted)
        wait_until_blocking(
            lambda: not small.file("one", f"{goes}.bin").exists(), within=30, what=f"{goes} to go"
        )
        killed(small)
        small.wait_for_workers()

    assert small.chat(wanted) == "one two three"

    assert there(small) == sorted(("d", wanted))
    assert small.file("one", f"{wanted}.bin").stat().st_size == SIZE
    small.frontend.ask("POST", f"/api/models/{wanted}/unload").raise_for_status()
    wait_until_blocking(lambda: not replicas_of(small, wanted), within=30, what="it to be unloaded")
    wait_until_blocking(lambda: kept(small) == ["d is pinned"], within=30, what="its report")
