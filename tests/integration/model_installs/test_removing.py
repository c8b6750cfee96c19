"""What the fleet has brought goes with its model; what a person has put there stays."""

import errno
from datetime import timedelta
from pathlib import Path

import pytest

from remuda.core.errors import NotFound
from remuda.model_installs.library import UNUSED
from remuda.model_installs.remover import Remover
from remuda.ops.model import State, Wish
from remuda.scheduler.model import StoredModel
from remuda.store.ops import SqlOpStore
from remuda.store.replicas import SqlModelStore
from tests.integration.model_installs.conftest import Make
from tests.integration.model_installs.test_installing import TINY, padded
from tests.support.clocks import AheadClock, HostClock
from tests.support.fleet_tables import fresh_database
from tests.support.hub import HubServer
from tests.support.model_rig import ModelFrontend
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def stored(frontend: ModelFrontend) -> list[str]:
    return sorted(blob.digest for blob in frontend.library.blobs.listing())


async def test_a_removed_model_leaves_nothing_but_what_others_use(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    one = await frontend.installed(await frontend.install(hub.add("/m.gguf", TINY), "one"))
    await frontend.installed(await frontend.install(hub.add("/m2.gguf", TINY), "two"))
    assert one.manifest is not None

    step = await frontend.ended(await frontend.remove("one"))
    assert (step.state, step.reason) == (State.SUCCEEDED, "")
    assert frontend.visible() == ["two/m2.gguf"]
    assert stored(frontend) == sorted(one.manifest.digests)
    assert [model.name for model in await frontend.store.models()] == ["two"]

    step = await frontend.ended(await frontend.remove("two"))
    assert "freed" in step.reason
    assert frontend.visible() == []
    assert stored(frontend) == []
    assert not (frontend.library.models / "two").exists()
    with pytest.raises(NotFound):
        await frontend.remove("two")


async def test_a_file_that_a_person_put_there_stays_unless_it_is_meant(frontend: ModelFrontend) -> None:
    models = frontend.library.models
    models.mkdir(parents=True)
    for name in ("mine", "too"):
        (models / f"{name}.gguf").write_bytes(TINY)
        text = f"name: {name}\nbackend: llama-cpp\nparameters: {{model: {name}.gguf}}\n"
        await frontend.store.put_model(StoredModel(name, text, "r", "added"))

    await frontend.ended(await frontend.remove("mine"))
    await frontend.ended(await frontend.remove("too", files=True))

    assert frontend.visible() == ["mine.gguf"]
    assert await frontend.store.models() == []


async def test_a_part_that_another_model_needs_stays_whatever_is_meant(frontend: ModelFrontend) -> None:
    models = frontend.library.models
    models.mkdir(parents=True)
    parts = [f"big-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        (models / part).write_bytes(TINY)
    for name in ("mine", "other"):
        text = f"name: {name}\nbackend: llama-cpp\nparameters: {{model: {parts[0]}}}\n"
        await frontend.store.put_model(StoredModel(name, text, "r", "added"))

    await frontend.ended(await frontend.remove("mine", files=True))
    assert frontend.visible() == parts
    await frontend.ended(await frontend.remove("other", files=True))
    assert frontend.visible() == []


async def test_a_model_that_is_added_again_is_not_removed_by_what_was_asked_before(
    frontend: ModelFrontend,
) -> None:
    await frontend.store.put_model(StoredModel("m", "name: m\n", "r", "added"))
    op = await frontend.remove("m")
    await frontend.store.remove_model("m")
    await frontend.store.put_model(StoredModel("m", "name: m\n", "r", "added"))
    await frontend.ended(op)
    assert [model.name for model in await frontend.store.models()] == ["m"]


async def test_a_removal_ends_an_install_and_an_install_follows_a_removal(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    url = hub.add("/m.gguf", padded(300_000))
    await frontend.installed(await frontend.install(url))
    hub.add("/m.gguf", padded(400_000))
    hub.bytes_per_s = 300_000
    newer = await frontend.install(url)
    await wait_until(lambda: len(hub.asked("GET")) > 1)

    removal = await frontend.remove("m")

    assert (await frontend.ended(newer)).state is State.CANCELLED
    assert (await frontend.ended(removal)).state is State.SUCCEEDED
    assert frontend.visible() == []
    assert await frontend.store.models() == []

    hub.bytes_per_s = None
    again = await frontend.installed(await frontend.install(url))
    assert again.name == "m"


async def test_other_frontends_let_go_of_what_one_of_them_removed(make: Make, hub: HubServer) -> None:
    async with make("first", name="frontend-1") as first:
        await first.installed(await first.install(hub.add("/m.gguf", TINY)))
    async with make("second", name="frontend-2") as second:
        assert (await second.ended(await second.remove("m"))).state is State.SUCCEEDED
    async with make("first", name="frontend-1") as first:
        assert first.visible() == ["m/m.gguf"]
        await first.tidy()
        assert first.visible() == []


async def test_a_frontend_with_another_database_removes_nothing(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    await frontend.installed(await frontend.install(hub.add("/m.gguf", TINY)))
    other, _ = fresh_database(HostClock())
    remover = Remover(
        frontend.library,
        SqlModelStore(other),
        SqlOpStore(other),
        frontend.rows,
        frontend.uploads,
        AheadClock(),
    )
    assert not (await remover.tidy()).removed
    assert frontend.visible() == ["m/m.gguf"]


def later(span: timedelta) -> AheadClock:
    clock = AheadClock()
    clock.ahead = span
    return clock


async def test_what_came_for_a_failed_install_goes_when_nobody_tries_again(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    kept = await frontend.installed(await frontend.install(hub.add("/m.gguf", TINY)))
    assert kept.manifest is not None
    cut_off = padded(300_000)[:200_000]
    failed = await frontend.ended(await frontend.install(hub.add("/cut.gguf", cut_off)))
    assert failed.state is State.FAILED
    assert len(stored(frontend)) == 2
    assert frontend.library.unused_bytes() == len(cut_off)

    await frontend.tidy(later(UNUSED - timedelta(hours=1)))
    assert frontend.library.unused_bytes() == len(cut_off), "it may be tried again"
    await frontend.tidy(later(UNUSED + timedelta(hours=1)))
    assert frontend.library.unused_bytes() == 0
    assert stored(frontend) == sorted(kept.manifest.digests)


async def test_what_has_come_for_a_paused_install_stays_and_goes_once_it_is_cancelled(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    hub.bytes_per_s = 100_000
    op = await frontend.install(hub.add("/m.gguf", padded(10_000_000)))
    await wait_until(lambda: partial_bytes(frontend), within=30)
    await frontend.ops.store.wish(op, Wish.PAUSE)
    frontend.ops.signal.notify()
    await wait_until(frontend.library.unused_bytes, within=30, what="the pause")

    await frontend.tidy(later(2 * UNUSED))
    assert partial_bytes(frontend), "it goes on with them"
    await frontend.ops.store.wish(op, Wish.CANCEL)
    frontend.ops.signal.notify()
    assert (await frontend.ended(op)).state is State.CANCELLED
    await frontend.tidy(later(2 * UNUSED))
    assert not partial_bytes(frontend)


def partial_bytes(frontend: ModelFrontend) -> int:
    return sum(path.stat().st_size for path in (frontend.library.blobs.root / "partial").glob("*"))


async def by_hand(frontend: ModelFrontend, name: str, file: str, more: str = "") -> None:
    text = f"name: {name}\nbackend: llama-cpp\nparameters: {{model: {file}}}\n{more}"
    await frontend.store.put_model(StoredModel(name, text, "r", "added"))


async def test_an_install_that_a_file_is_in_the_way_of_stops_no_removal(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    url = hub.add("/m.gguf", TINY)
    await frontend.installed(await frontend.install(url, "good"))
    in_the_way = frontend.library.models / "afile"
    in_the_way.write_text("note")

    step = await frontend.ended(await frontend.install(url, "afile/b"))
    assert step.state is State.FAILED
    assert f"{in_the_way} is a file" in str(step.problem)
    assert [note.name for note in frontend.library.brought()] == ["good"]

    step = await frontend.ended(await frontend.remove("good"))
    assert step.state is State.SUCCEEDED, step
    assert frontend.visible() == ["afile"]


async def test_files_that_cannot_go_name_themselves_and_stop_no_other_removal(
    frontend: ModelFrontend, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = hub.add("/m.gguf", TINY)
    for name in ("first", "second"):
        await frontend.installed(await frontend.install(url, name))
    held, unlink = frontend.library.models / "first" / "m.gguf", Path.unlink

    def refuse(
        path: Path, missing_ok: bool = False
    ) -> None:  # Tests may run as root, who is refused nothing.
        if path == held:
            raise PermissionError(errno.EACCES, "Permission denied")
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        failed = await frontend.ended(await frontend.remove("first"))
        assert failed.state is State.FAILED
        assert f"{held} cannot be removed" in str(failed.problem)
        assert (await frontend.ended(await frontend.remove("second"))).state is State.SUCCEEDED
    assert frontend.visible() == ["first/m.gguf"]
    await frontend.tidy()
    assert frontend.visible() == []


async def test_what_another_model_names_stays_until_that_one_is_removed(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    await frontend.installed(await frontend.install(hub.add("/m.gguf", TINY), "qwen"))
    await by_hand(frontend, "mine", "qwen/m.gguf")

    step = await frontend.ended(await frontend.remove("qwen"))
    assert "qwen/m.gguf stays: the model mine uses it" in step.reason
    await frontend.tidy()
    assert frontend.visible() == ["qwen/m.gguf"]

    step = await frontend.ended(await frontend.remove("mine"))
    assert "freed" in step.reason
    assert frontend.visible() == []


async def test_what_a_person_has_changed_is_neither_removed_nor_replaced(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    url = hub.add("/m.gguf", TINY)
    await frontend.installed(await frontend.install(url, "qwen"))
    theirs = frontend.library.models / "qwen" / "m.gguf"
    theirs.unlink()
    theirs.write_bytes(bytes(len(TINY)))  # Of the same length.
    hub.add("/m.gguf", padded(100_000))

    step = await frontend.ended(await frontend.install(url, "qwen"))
    assert step.state is State.FAILED
    assert f"{theirs} was changed by a person" in str(step.problem)
    step = await frontend.ended(await frontend.remove("qwen"))
    assert "qwen/m.gguf stays: it was changed" in step.reason
    assert theirs.read_bytes() == bytes(len(TINY))


async def test_a_file_that_was_only_touched_is_still_what_was_brought(
    frontend: ModelFrontend, hub: HubServer
) -> None:
    await frontend.installed(await frontend.install(hub.add("/m.gguf", TINY), "qwen"))
    (frontend.library.models / "qwen" / "m.gguf").touch()
    await frontend.ended(await frontend.remove("qwen"))
    assert frontend.visible() == []
