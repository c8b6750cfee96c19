"""backend.install: have the backend, and a process of it."""

import json

import anyio
import pytest

from remuda.wire import subjects
from remuda.wire.backends import (
    BackendCancel,
    BackendCancelReply,
    BackendInstall,
    BackendInstallReply,
    BackendUpgrade,
    BackendUpgradeReply,
)
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.model import ProcessPhase
from tests.support.commands_rig import RUN, Rig
from tests.support.waiting import wait_until
from tests.unit.worker.commands.traffic import offer

pytestmark = pytest.mark.anyio


async def test_backend_is_installed_and_started_for_its_model(rig: Rig) -> None:
    rig.offer("echo")

    reply = await rig.install(BackendInstall(backend="echo", model_id="qwen", replica_index=1))

    assert reply.success
    [launch] = rig.supervision.started
    assert launch.key == ProcessKey("qwen", 1)
    assert launch.folder == rig.folder("echo")
    assert "echo" in launch.names


async def test_install_without_a_model_starts_the_backend_under_its_own_name(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo"))

    assert [str(launch.key) for launch in rig.supervision.started] == ["echo#0"]
    for uri in ("", f"file://{rig.source('echo')}"):
        assert (await rig.install(BackendInstall(backend="echo", uri=uri))).unchanged
    assert len(rig.supervision.started) == 1


async def test_what_an_install_of_ours_has_started_only_to_check_it_is_stopped(rig: Rig) -> None:
    """It would hold memory, and no list of replicas would have it."""
    rig.offer("echo")
    replies = [await rig.install(BackendInstall(backend="echo", op_id="o", attempt=1)) for _ in range(2)]
    assert [(one.success, one.unproven, one.unchanged) for one in replies] == [
        (True, "", False),
        (True, "", True),
    ]
    assert [str(launch.key) for launch in rig.supervision.started] == ["echo#0"]
    assert not rig.supervision.replicas()


async def test_install_of_something_running_returns_at_once_without_gallery_or_disk(rig: Rig) -> None:
    """Row A136."""
    running = rig.live("qwen#0", "echo")

    reply = await rig.install(BackendInstall(backend="echo", model_id="qwen", op_id="o-1"))

    assert reply == BackendInstallReply(
        success=True, address=f"gpu-1.example:{running.port}", instance=running.instance
    )
    assert rig.own_galleries.asked == 0
    assert rig.depot.installs == []
    assert not rig.folder("echo").exists()
    assert rig.published == []


async def test_install_of_something_running_waits_for_no_other_install_of_the_backend(rig: Rig) -> None:
    rig.offer("echo")
    rig.live("qwen#0", "echo")
    rig.depot.gates["echo"] = anyio.Event()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.install, BackendInstall(backend="echo", model_id="other"))
        await rig.depot.reached["echo"].wait()
        with anyio.fail_after(10):
            reply = await rig.install(BackendInstall(backend="echo", model_id="qwen"))
        rig.depot.gates["echo"].set()

    assert reply.success


async def test_reply_has_the_advertised_host_and_the_real_port(rig: Rig) -> None:
    """Row A148."""
    rig.offer("echo")
    reply = await rig.install(BackendInstall(backend="echo", model_id="qwen"))

    [replica] = rig.supervision.replicas()
    assert reply.address == f"gpu-1.example:{replica.port}"
    assert reply.instance == replica.instance
    assert reply.protocol == reply.path == ""


async def test_process_that_speaks_http_is_reached_through_the_workers_own_server(rig: Rig) -> None:
    rig.offer("vllm")
    rig.http_backends.add("vllm")
    reply = await rig.install(BackendInstall(backend="vllm", model_id="org/qwen", model_path="q"))

    assert reply.success
    assert reply.address == "gpu-1.example:50050"
    assert reply.protocol == "http"
    assert reply.path == "/v1/processes/org%2Fqwen%230"


async def test_http_server_with_other_options_is_another_server(rig: Rig) -> None:
    rig.offer("vllm")
    rig.http_backends.add("vllm")
    request = BackendInstall(backend="vllm", model_id="qwen", options=("a",))
    for one in (request, request, request.model_copy(update={"options": ("b",)})):
        await rig.install(one)

    assert len(rig.supervision.started) == 2


async def test_dead_process_is_replaced(rig: Rig) -> None:
    rig.offer("echo")
    rig.live("qwen#0", "echo", phase=ProcessPhase.FAILED)

    reply = await rig.install(BackendInstall(backend="echo", model_id="qwen"))

    assert reply.success
    assert len(rig.supervision.started) == 1


async def test_process_that_has_just_ended_is_replaced_though_it_still_counts_as_ready(rig: Rig) -> None:
    rig.offer("echo")
    ended = rig.live("qwen#0", "echo")
    rig.supervision.just_ended.add(ended.key)

    reply = await rig.install(BackendInstall(backend="echo", model_id="qwen"))

    assert reply.success
    assert reply.instance != ended.instance
    assert len(rig.supervision.started) == 1


async def test_installed_backend_is_not_looked_for_in_galleries(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="a"))
    await rig.install(BackendInstall(backend="echo", model_id="b"))

    assert rig.own_galleries.asked == 1
    assert len(rig.supervision.started) == 2


async def test_system_backend_is_started_from_where_it_is(rig: Rig) -> None:
    """Row A142: the whole search spec is the listing's; here, that it is used."""
    system = rig.depot.places.system / "whisper"
    system.mkdir(parents=True)
    (system / "run.sh").write_text(RUN)

    reply = await rig.install(BackendInstall(backend="whisper", model_id="w"))

    assert reply.success
    assert rig.supervision.started[0].folder == system
    assert rig.depot.installs == []


async def test_forced_install_stops_every_process_of_the_backend_and_the_exact_key(rig: Rig) -> None:
    """Row A137."""
    rig.offer("echo")
    for key, backend in (("a#0", "echo"), ("a#1", "echo"), ("qwen#0", "other"), ("b#0", "other")):
        rig.live(key, backend)

    reply = await rig.install(BackendInstall(backend="echo", model_id="qwen", force=True))

    assert reply.success
    stopped = {(str(key), free) for key, free in rig.supervision.stopped}
    assert stopped == {("a#0", False), ("a#1", False), ("qwen#0", False)}


async def test_forced_install_overwrites_what_is_there(rig: Rig) -> None:
    """Row A138."""
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="qwen"))
    rig.source("echo", RUN + "# newer\n")

    await rig.install(BackendInstall(backend="echo", model_id="qwen", force=True))

    assert "newer" in (rig.folder("echo") / "run.sh").read_text()


async def test_forced_install_starts_a_fresh_process_under_the_same_key(rig: Rig) -> None:
    """Row A139."""
    rig.offer("echo")
    before = await rig.install(BackendInstall(backend="echo", model_id="qwen"))
    after = await rig.install(BackendInstall(backend="echo", model_id="qwen", force=True))

    assert [str(one.key) for one in rig.supervision.replicas()] == ["qwen#0"]
    assert before.address != after.address


@pytest.mark.parametrize(("force", "stopped"), [(True, ["a#0"]), (False, [])])
async def test_install_by_a_meta_name_that_is_not_here_yet_stops_what_it_replaces(
    rig: Rig, force: bool, stopped: list[str]
) -> None:
    offer(rig)
    await rig.install(BackendInstall(backend="build", model_id="a"))

    await rig.install(BackendInstall(backend="meta", model_id="b", force=force))

    assert [str(key) for key, _ in rig.supervision.stopped] == stopped


async def test_process_that_cannot_be_stopped_fails_a_forced_install(rig: Rig) -> None:
    rig.offer("echo")
    rig.supervision.immortal.add(rig.live("a#0", "echo").key)

    reply = await rig.install(BackendInstall(backend="echo", model_id="qwen", force=True))

    assert not reply.success
    assert "a#0" in reply.error
    assert not rig.folder("echo").exists()


async def test_galleries_of_the_request_override_the_machines_own(rig: Rig) -> None:
    """Row A143."""
    rig.offer("echo")
    given = rig.galleries_of(echo=f"file://{rig.source('other', RUN + '# theirs')}")

    reply = await rig.install(BackendInstall(backend="echo", backend_galleries=given))

    assert reply.success
    assert rig.own_galleries.asked == 0
    assert "theirs" in (rig.folder("echo") / "run.sh").read_text()


@pytest.mark.parametrize("galleries", ["null", "[]"])
async def test_empty_galleries_of_the_request_have_nothing(rig: Rig, galleries: str) -> None:
    rig.offer("echo")
    reply = await rig.install(BackendInstall(backend="echo", backend_galleries=galleries))

    assert not reply.success
    assert "echo" in reply.error


async def test_galleries_that_are_no_list_are_refused(rig: Rig) -> None:
    reply = await rig.install(BackendInstall(backend="echo", backend_galleries="{}"))

    assert "list of galleries" in reply.error


async def test_source_outside_the_galleries_is_installed_under_its_name_and_alias(rig: Rig) -> None:
    """Row A144."""
    source = rig.source("somewhere")
    reply = await rig.install(
        BackendInstall(backend="mine", uri=f"file://{source}", name="mine", alias="my-alias", model_id="m")
    )

    assert reply.success
    assert rig.own_galleries.asked == 0
    assert json.loads((rig.folder("mine") / "metadata.json").read_text())["alias"] == "my-alias"


async def test_source_sent_in_the_place_of_a_name_gives_the_name(rig: Rig) -> None:
    source = str(rig.source("somewhere"))
    reply = await rig.install(BackendInstall(backend=source, uri=source))

    assert reply.success
    assert [str(launch.key) for launch in rig.supervision.started] == ["somewhere#0"]


async def test_backend_that_is_not_there_after_installing_is_said_so(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row A145."""
    rig.offer("echo")

    async def lose(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(rig.depot, "install", lose)
    reply = await rig.install(BackendInstall(backend="echo"))

    assert "not found after install attempt" in reply.error


async def test_empty_artifact_fails_with_the_reason(rig: Rig) -> None:
    rig.offer("echo")
    (rig.source("echo") / "run.sh").unlink()

    reply = await rig.install(BackendInstall(backend="echo"))

    assert "run.sh" in reply.error
    assert rig.supervision.started == []


async def test_unknown_backend_fails_with_the_reason(rig: Rig) -> None:
    reply = await rig.install(BackendInstall(backend="nonesuch"))

    assert not reply.success
    assert "nonesuch" in reply.error


async def test_negative_replica_is_refused(rig: Rig) -> None:
    reply = await rig.install(BackendInstall(backend="echo", replica_index=-1))

    assert "replica_index" in reply.error


async def test_slow_install_delays_neither_another_backend_nor_a_list_nor_a_stop(rig: Rig) -> None:
    """Rows A141, A146."""
    rig.offer("slow", "quick")
    rig.depot.gates["slow"] = anyio.Event()
    rig.live("m#0", "other")
    slow: list[BackendInstallReply] = []

    async def install_slow() -> None:
        slow.append(await rig.install(BackendInstall(backend="slow")))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(install_slow)
        await rig.depot.reached["slow"].wait()
        with anyio.fail_after(10):
            quick = await rig.install(BackendInstall(backend="quick"))
            await rig.say(subjects.backend_list, b"{}")
            await rig.say(subjects.backend_stop, b'{"backend":"m"}')
        assert slow == []
        rig.depot.gates["slow"].set()

    assert quick.success
    assert slow[0].success
    assert rig.supervision.stopped == [(ProcessKey("m", 0), True)]


async def test_identical_installs_share_one_pull_and_its_progress(rig: Rig) -> None:
    """Row A141: the same backend's installs come one after the other."""
    rig.offer("echo")
    rig.depot.gates["echo"] = anyio.Event()
    replies: list[BackendInstallReply] = []

    async def install(op_id: str) -> None:
        replies.append(await rig.install(BackendInstall(backend="echo", model_id="m", op_id=op_id)))

    async with anyio.create_task_group() as tasks:
        for op_id in ("o-1", "o-2", "o-3"):
            tasks.start_soon(install, op_id)
        await wait_until(lambda: rig.queued("echo") == 2)
        rig.depot.gates["echo"].set()

    assert len({reply.address for reply in replies}) == 1
    assert all(reply.success for reply in replies)
    assert len(rig.depot.installs) == len(rig.supervision.started) == 1
    for op_id in ("o-1", "o-2", "o-3"):
        assert rig.progress(op_id)[-1].overall == 100


async def test_install_that_orders_what_has_just_come_is_told_of_the_end(rig: Rig) -> None:
    rig.offer("echo")
    rig.depot.gates["echo"] = anyio.Event()
    first = anyio.Event()

    async def install_first() -> None:
        await rig.install(BackendInstall(backend="echo", model_id="m"))
        first.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(install_first)
        await rig.depot.reached["echo"].wait()
        rig.own_galleries.gate = anyio.Event()
        tasks.start_soon(rig.install, BackendInstall(backend="echo", model_id="m", op_id="o-1"))
        await wait_until(lambda: rig.own_galleries.asked == 2)
        rig.depot.gates["echo"].set()
        await first.wait()
        rig.own_galleries.gate.set()

    assert len(rig.depot.installs) == 1
    assert [event.overall for event in rig.progress("o-1")] == [0, 100]


async def test_progress_is_published_only_for_an_operation(rig: Rig) -> None:
    """Row A027."""
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo"))
    assert rig.published == []

    await rig.install(BackendInstall(backend="echo", model_id="m", op_id="o-1"))
    assert [event.phase for event in rig.progress("o-1")][-1] == "starting"
    assert {subject for subject, _ in rig.published} == {"nodes.n1.backend.install.o-1.progress"}
    assert {event.node_id for event in rig.progress("o-1")} == {"n1"}


async def test_cancelled_install_says_so_and_leaves_the_backend_free(rig: Rig) -> None:
    rig.offer("echo")
    rig.depot.gates["echo"] = anyio.Event()
    replies: list[BackendInstallReply] = []

    async def install() -> None:
        replies.append(await rig.install(BackendInstall(backend="echo", op_id="o-1", attempt=2)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(install)
        await rig.depot.reached["echo"].wait()
        [work] = rig.commands.report().work
        cancelled = await rig.ask(subjects.backend_cancel, BackendCancel(op_id="o-1"), BackendCancelReply)

    assert (work.op_id, work.attempt, work.kind, work.backend) == ("o-1", 2, "install", "echo")
    assert cancelled == BackendCancelReply(success=True, cancelled=True)
    assert not replies[0].success
    assert "cancelled" in replies[0].error
    assert rig.commands.report().work == ()


async def test_install_whose_process_is_starting_has_gone_too_far_to_be_cancelled(rig: Rig) -> None:
    rig.offer("echo")
    rig.supervision.readiness = anyio.Event()
    replies: list[BackendInstallReply] = []

    async def install() -> None:
        replies.append(await rig.install(BackendInstall(backend="echo", op_id="o-1")))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(install)
        await wait_until(lambda: rig.supervision.started)
        cancelled = await rig.ask(subjects.backend_cancel, BackendCancel(op_id="o-1"), BackendCancelReply)
        rig.supervision.readiness.set()

    assert cancelled == BackendCancelReply(success=True, cancelled=False)
    assert replies[0].success


async def test_cancel_of_nothing_is_no_failure(rig: Rig) -> None:
    reply = await rig.ask(subjects.backend_cancel, BackendCancel(op_id="o-9"), BackendCancelReply)

    assert reply == BackendCancelReply(success=True, cancelled=False)


async def test_one_cancelled_install_leaves_an_identical_one_to_go_on(rig: Rig) -> None:
    rig.offer("echo")
    rig.depot.gates["echo"] = anyio.Event()
    replies: dict[str, BackendInstallReply] = {}

    async def install(op_id: str) -> None:
        replies[op_id] = await rig.install(BackendInstall(backend="echo", op_id=op_id))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(install, "first")
        await rig.depot.reached["echo"].wait()
        tasks.start_soon(install, "second")
        await rig.ask(subjects.backend_cancel, BackendCancel(op_id="first"), BackendCancelReply)
        rig.depot.gates["echo"].set()

    assert not replies["first"].success
    assert replies["second"].success


async def test_another_source_for_a_name_replaces_what_is_installed(rig: Rig) -> None:
    """Nobody could say which bytes are meant: then the source tells whether it is the same."""
    first, second = (
        BackendInstall(backend="mine", uri=f"file://{rig.source(version, RUN + version)}", name="mine")
        for version in ("#v1", "#v2")
    )
    await rig.install(first)
    await rig.install(first)
    assert len(rig.depot.installs) == 1
    reply = await rig.install(second)
    assert reply.success
    assert (rig.folder("mine") / "run.sh").read_text() == RUN + "#v2"
    assert rig.supervision.stopped == [(ProcessKey("mine", 0), True)], "nothing runs from replaced files"


async def test_galleries_are_read_afresh_for_names_they_did_not_have_and_for_upgrades(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo"))
    assert rig.own_galleries.refreshed == 0
    await rig.install(BackendInstall(backend="unheard-of"))
    assert rig.own_galleries.refreshed == 1
    await rig.ask(subjects.backend_upgrade, BackendUpgrade(backend="echo"), BackendUpgradeReply)
    assert rig.own_galleries.refreshed == 2


async def test_pinned_digest_that_is_not_installed_replaces_what_is(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="a"))
    await rig.install(BackendInstall(backend="echo", model_id="b", digest="sha256:" + "0" * 64))

    assert len(rig.depot.installs) == 2
    assert rig.supervision.stopped == [(ProcessKey("a", 0), True)]


async def test_pinned_digest_counts_also_for_what_runs_already(rig: Rig) -> None:
    rig.offer("echo")
    first = await rig.install(BackendInstall(backend="echo", model_id="a"))
    second = await rig.install(BackendInstall(backend="echo", model_id="a", digest="sha256:" + "0" * 64))

    assert len(rig.depot.installs) == 2
    assert second.instance != first.instance


async def test_backend_removed_while_its_install_waits_is_brought_again(rig: Rig) -> None:
    rig.offer("echo")
    await rig.install(BackendInstall(backend="echo", model_id="a"))
    rig.supervision.readiness = anyio.Event()
    replies: list[BackendInstallReply] = []

    async def install(model: str) -> None:
        replies.append(await rig.install(BackendInstall(backend="echo", model_id=model)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(install, "b")
        await wait_until(lambda: len(rig.supervision.started) == 2)
        tasks.start_soon(rig.say, subjects.backend_delete, b'{"backend":"echo"}')
        await wait_until(lambda: rig.queued("echo") == 1)
        tasks.start_soon(install, "c")
        rig.supervision.readiness.set()

    assert all(reply.success for reply in replies)
    assert [str(one.key) for one in rig.supervision.replicas()] == ["c#0"]
    assert len(rig.depot.installs) == 2


async def test_backend_of_one_named_gallery_is_installed_and_recognised(rig: Rig) -> None:
    rig.offer("echo")
    request = BackendInstall(backend="own@echo", model_id="m")

    first, second = await rig.install(request), await rig.install(request)

    assert first.success
    assert first == second
    assert len(rig.supervision.started) == 1


async def test_galleries_used_lately_are_not_opened_again(rig: Rig) -> None:
    given = rig.galleries_of(echo=f"file://{rig.source('echo')}", other=f"file://{rig.source('other')}")
    for backend in ("echo", "other"):
        await rig.install(BackendInstall(backend=backend, backend_galleries=given))

    assert len(rig.opened) == 1
