"""Galleries over real HTTP: conditional requests, mirrors, copies on disk, and life offline."""

import json
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from remuda.gallery.fetch import Fetcher
from remuda.gallery.model import Gallery, MachineProfile, Reading, Verification
from remuda.gallery.resolve import ResolvedBuild, resolve
from remuda.gallery.sources import REMUDA, Cache, FailureLog, Sources
from tests.integration.gallery.conftest import MakeSources
from tests.integration.gallery.servers import Server
from tests.support.clocks import HandClock

pytestmark = pytest.mark.anyio

INDEX = b"- {name: tts, uri: 'registry.example/tts:latest'}\n"
NEWER = b"- {name: tts, uri: 'registry.example/tts:newer'}\n"
HOURS_LATER = timedelta(hours=2)


def names(reading: Reading) -> list[str]:
    return [entry.name for entry in reading.index.entries]


def uri(reading: Reading) -> str:
    return reading.index.entries[0].uri


def gallery(*servers: Server, name: str = "mine") -> Gallery:
    first, *mirrors = (server.url() for server in servers)
    return Gallery(name=name, url=first, mirrors=tuple(mirrors))


# Freshness


async def test_a_fresh_index_is_not_asked_about(
    sources: MakeSources, server: Server, clock: HandClock
) -> None:
    server.serve(INDEX)
    mine = sources(gallery(server))

    await mine.read()
    clock.advance(timedelta(minutes=59))
    await mine.read()

    assert len(server.asked) == 1


async def test_another_process_uses_the_copy_on_disk(sources: MakeSources, server: Server) -> None:
    server.serve(INDEX)
    await sources(gallery(server)).read()

    (reading,) = await sources(gallery(server)).read()

    assert names(reading) == ["tts"]
    assert len(server.asked) == 1


@pytest.mark.parametrize("validator", [{"etag": '"1"'}, {"modified": "Sun, 01 Mar 2026 00:00:00 GMT"}])
async def test_an_old_copy_is_confirmed_without_being_sent(
    sources: MakeSources, server: Server, clock: HandClock, validator: dict[str, str]
) -> None:
    server.serve(INDEX, **validator)
    await sources(gallery(server)).read()
    clock.advance(HOURS_LATER)

    (reading,) = await sources(gallery(server)).read()
    await sources(gallery(server)).read()

    assert names(reading) == ["tts"]
    assert reading.confirmed_at == clock.now()
    assert len(server.asked) == 2
    assert {"If-None-Match", "If-Modified-Since"} & set(server.asked[1].headers)


async def test_a_changed_index_replaces_the_copy(
    sources: MakeSources, server: Server, clock: HandClock
) -> None:
    server.serve(INDEX, etag='"1"')
    mine = sources(gallery(server))
    await mine.read()
    server.serve(NEWER, etag='"2"')
    clock.advance(HOURS_LATER)

    (reading,) = await mine.read()

    assert uri(reading).endswith("newer")


async def test_a_refresh_asks_at_once(sources: MakeSources, server: Server) -> None:
    server.serve(INDEX)
    mine = sources(gallery(server))
    await mine.read()
    server.serve(NEWER)

    (reading,) = await mine.read(refresh=True)

    assert uri(reading).endswith("newer")


async def test_a_copy_from_the_future_is_asked_about(
    sources: MakeSources, server: Server, clock: HandClock
) -> None:
    server.serve(INDEX)
    await sources(gallery(server)).read()
    clock.advance(-HOURS_LATER)

    await sources(gallery(server)).read()

    assert len(server.asked) == 2


async def test_an_edited_file_is_seen_at_once(sources: MakeSources, tmp_path: Path) -> None:
    path = tmp_path / "index.yaml"
    mine = sources(Gallery(name="mine", url=f"file://{path}"))
    path.write_bytes(INDEX)
    await mine.read()
    path.write_bytes(NEWER)

    (reading,) = await mine.read()

    assert uri(reading).endswith("newer")


@pytest.mark.parametrize("refresh", [False, True])
async def test_callers_that_come_together_share_one_fetch(
    sources: MakeSources, server: Server, refresh: bool
) -> None:
    asked, release = anyio.Event(), anyio.Event()

    async def held(request: web.BaseRequest) -> web.StreamResponse:
        asked.set()
        await release.wait()
        return web.Response(body=INDEX)

    server.routes["/index.yaml"] = held
    mine = sources(gallery(server))
    answers: list[Reading] = []

    async def read() -> None:
        answers.extend(await mine.read(refresh=refresh))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(read)
            await asked.wait()
            release.set()

    assert len(server.asked) == 1
    assert [names(answer) for answer in answers] == [["tts"]] * 20


async def test_a_caller_that_leaves_does_not_take_the_others_along(
    sources: MakeSources, server: Server
) -> None:
    asked = anyio.Event()

    async def first_hangs(request: web.BaseRequest) -> web.StreamResponse:
        if not asked.is_set():
            asked.set()
            await anyio.sleep_forever()
        return web.Response(body=INDEX)

    server.routes["/index.yaml"] = first_hangs
    mine = sources(gallery(server))
    leaving = anyio.CancelScope()

    async def leave() -> None:
        with leaving:
            await mine.read()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(leave)
            await asked.wait()
            leaving.cancel()
        (reading,) = await mine.read()

    assert names(reading) == ["tts"]


# Failing


async def test_mirrors_are_asked_in_order(sources: MakeSources, server: Server, mirror: Server) -> None:
    server.fail(500)
    mirror.serve(INDEX)

    (reading,) = await sources(gallery(server, mirror)).read()

    assert names(reading) == ["tts"]
    assert reading.trouble == ""


async def test_a_failed_address_rests_for_ten_minutes(
    sources: MakeSources, server: Server, mirror: Server, clock: HandClock
) -> None:
    server.fail(500)
    mirror.serve(INDEX)
    mine = sources(gallery(server, mirror))

    await mine.read()
    clock.advance(timedelta(minutes=9))
    await mine.read(refresh=True)
    assert len(server.asked) == 1
    clock.advance(timedelta(minutes=1))
    await mine.read(refresh=True)

    assert len(server.asked) == 2


async def test_when_all_failed_all_are_tried_again(
    sources: MakeSources, server: Server, mirror: Server, clock: HandClock
) -> None:
    server.fail(500)
    mirror.fail(503)
    mine = sources(gallery(server, mirror))
    await mine.read()
    await mine.read()
    assert len(server.asked) == len(mirror.asked) == 1
    server.serve(INDEX)
    clock.advance(timedelta(seconds=31))

    (reading,) = await mine.read()

    assert names(reading) == ["tts"]
    assert reading.trouble == ""


async def test_trouble_is_logged_when_it_begins_changes_and_ends(
    fetcher: Fetcher, server: Server, clock: HandClock, tmp_path: Path
) -> None:
    cache, failures = Cache(tmp_path), FailureLog()
    with capture_logs() as logged:
        for status in (500, 500, 503, 503, 200, 200, 503):
            server.serve(INDEX) if status == 200 else server.fail(status)
            mine = Sources((gallery(server),), fetcher=fetcher, cache=cache, clock=clock, failures=failures)
            await mine.read(refresh=True)

    told = [(event["event"], event.get("error", "").partition(" answered ")[2][:3]) for event in logged]
    failed, answers = "gallery_address_failed", ("gallery_address_answers", "")
    assert told == [(failed, "500"), (failed, "503"), answers, (failed, "503")]


async def test_nothing_to_be_had_is_said_for_every_address(
    sources: MakeSources, server: Server, mirror: Server, clock: HandClock
) -> None:
    server.fail(500)
    mirror.fail(503)

    (reading,) = await sources(gallery(server, mirror)).read()

    assert not reading.readable
    assert "answered 500" in reading.trouble
    assert "answered 503" in reading.trouble
    assert reading.standing(clock.now()).startswith("gallery mine cannot be used: ")


async def test_what_is_no_index_counts_as_a_failure(
    sources: MakeSources, server: Server, mirror: Server
) -> None:
    server.serve(b"<html>Sign in to the hotel's network</html>")
    mirror.serve(INDEX)

    (reading,) = await sources(gallery(server, mirror)).read()

    assert names(reading) == ["tts"]


# Offline


async def test_an_entry_that_cannot_be_used_is_logged_once_for_each_change(
    sources: MakeSources, tmp_path: Path
) -> None:
    path = tmp_path / "index.yaml"
    path.write_bytes(INDEX + b"- {name: empty}\n")
    mine = sources(Gallery(name="mine", url=f"file://{path}"))

    with capture_logs() as logged:
        await mine.read()
        await mine.read()

    told = [
        (event["count"], event["first"]) for event in logged if event["event"] == "gallery_entries_left_out"
    ]
    reason = "it has neither a uri nor capabilities, so nothing can be installed"
    assert told == [(1, f"empty (line 2): {reason}")]


async def test_offline_the_copy_answers_with_its_age(
    sources: MakeSources, server: Server, clock: HandClock
) -> None:
    server.serve(INDEX)
    await sources(gallery(server)).read()
    server.fail(503)
    clock.advance(timedelta(days=3))

    (reading,) = await sources(gallery(server)).read()

    assert names(reading) == ["tts"]
    assert reading.standing(clock.now()).startswith(
        "gallery mine was read 3 days ago; since then it could not be: http://127.0.0.1"
    )


async def test_a_bad_answer_never_replaces_a_good_copy(
    sources: MakeSources, server: Server, clock: HandClock
) -> None:
    server.serve(INDEX)
    await sources(gallery(server)).read()
    server.serve(b"not: an index")
    clock.advance(HOURS_LATER)
    await sources(gallery(server)).read()
    server.fail()

    (reading,) = await sources(gallery(server)).read()

    assert names(reading) == ["tts"]
    assert "since then" in reading.standing(clock.now())


async def test_copies_are_private_and_whole(sources: MakeSources, server: Server, tmp_path: Path) -> None:
    server.serve(INDEX, etag='"1"')
    await sources(gallery(server)).read()

    (path,) = (tmp_path / "galleries").iterdir()

    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["content"] == INDEX.decode()


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b'{"content": "x"}', b"[]"])
async def test_a_damaged_copy_is_fetched_again(
    sources: MakeSources, server: Server, tmp_path: Path, damage: bytes
) -> None:
    server.serve(INDEX)
    await sources(gallery(server)).read()
    (path,) = (tmp_path / "galleries").iterdir()
    path.write_bytes(damage)

    (reading,) = await sources(gallery(server)).read()

    assert names(reading) == ["tts"]
    assert len(server.asked) == 2


async def test_a_folder_that_cannot_be_written_costs_only_the_copy(
    sources: MakeSources, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "galleries").write_text("in the way")
    server.serve(INDEX)

    (reading,) = await sources(gallery(server)).read()

    assert names(reading) == ["tts"]


async def test_with_nothing_reachable_the_shipped_gallery_answers(
    sources: MakeSources, free_address: str
) -> None:
    elsewhere = Gallery(name="localai", url=f"{free_address}/backends", mirrors=(f"{free_address}/mirror",))

    readings = await sources(REMUDA, elsewhere).read()
    answer = resolve(readings, "llama-cpp", MachineProfile("linux", "amd64", "nvidia"))

    assert isinstance(answer, ResolvedBuild)
    assert answer.entry.uri == "builtin:llama-cpp"
    assert "runs on the CPU" in answer.warnings[0]


async def test_a_gallery_that_demands_signatures_is_refused_and_the_others_work(
    sources: MakeSources, server: Server, mirror: Server
) -> None:
    server.serve(INDEX)
    mirror.serve(INDEX)
    signed = gallery(server, name="signed").model_copy(update={"verification": Verification()})

    refused, other = await sources(signed, gallery(mirror, name="other")).read()

    assert not refused.readable
    assert "demands signed images" in refused.trouble
    assert server.asked == []
    assert names(other) == ["tts"]
