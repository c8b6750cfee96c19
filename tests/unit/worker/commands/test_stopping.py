"""backend.stop, model.stop, model.unload and models.running: processes, and exactly those that are meant."""

from dataclasses import replace

import pytest

from remuda.wire import subjects
from remuda.wire.codec import NOTHING
from remuda.wire.models import (
    ModelsRunning,
    ModelsRunningReply,
    ModelStop,
    ModelStopReply,
    ModelUnload,
    ModelUnloadReply,
    RunningModel,
)
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.model import ProcessPhase, Protocol
from tests.support.commands_rig import Rig

pytestmark = pytest.mark.anyio


async def stop_model(
    rig: Rig, key: str, address: str, *, instance: str = "", force: bool = False
) -> ModelStopReply:
    request = ModelStop(
        model_name="", process_key=key, expected_address=address, instance=instance, force=force
    )
    return await rig.ask(subjects.model_stop, request, ModelStopReply)


async def unload(rig: Rig, name: str, address: str = "") -> ModelUnloadReply:
    return await rig.ask(
        subjects.model_unload, ModelUnload(model_name=name, address=address), ModelUnloadReply
    )


def stopped(rig: Rig) -> set[str]:
    return {str(key) for key, _ in rig.supervision.stopped}


@pytest.mark.parametrize("payload", [b"", NOTHING, b"{}", b'{"backend":""}'])
async def test_backend_stop_without_a_name_stops_everything_gracefully(rig: Rig, payload: bytes) -> None:
    """Row A149."""
    rig.live("a#0", "echo")
    rig.live("b#1", "other")

    replies = await rig.say(subjects.backend_stop, payload)

    assert replies == []
    assert rig.supervision.stopped == [(ProcessKey("a", 0), True), (ProcessKey("b", 1), True)]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("echo", {"a#0", "b#1"}), ("a", {"a#0", "a#1"}), ("a#1", {"a#1"}), ("nonesuch", set())],
)
async def test_backend_stop_with_a_name_stops_those(rig: Rig, name: str, meant: set[str]) -> None:
    """Row A149."""
    for key, backend in (("a#0", "echo"), ("a#1", "other"), ("b#1", "echo"), ("c#0", "other")):
        rig.live(key, backend)

    await rig.say(subjects.backend_stop, b'{"backend":"%s","force":true}' % name.encode())

    assert stopped(rig) == meant
    assert all(not free for _, free in rig.supervision.stopped)


async def test_malformed_backend_stop_stops_nothing(rig: Rig) -> None:
    rig.live("a#0", "echo")

    assert await rig.say(subjects.backend_stop, b"x") == []
    assert stopped(rig) == set()


async def test_model_stop_of_an_unknown_key_is_as_good_as_done(rig: Rig) -> None:
    reply = await stop_model(rig, "a#0", "127.0.0.1:1")

    assert reply == ModelStopReply(matched=False, terminated=True, process_key="a#0")


async def test_model_stop_compares_the_port_and_not_the_host(rig: Rig) -> None:
    port = rig.live("a#0", "echo").port
    reply = await stop_model(rig, "a#0", f"127.0.0.1:{port}")

    assert reply == ModelStopReply(
        matched=True, freed=True, terminated=True, process_key="a#0", address=f"gpu-1.example:{port}"
    )


async def test_model_stop_with_another_address_stops_nothing(rig: Rig) -> None:
    rig.live("a#0", "echo")
    reply = await stop_model(rig, "a#0", "gpu-1.example:1")

    assert (reply.matched, reply.terminated) == (True, False)
    assert "address mismatch" in reply.error
    assert stopped(rig) == set()


async def test_model_stop_with_another_instance_stops_nothing(rig: Rig) -> None:
    port = rig.live("a#0", "echo").port
    reply = await stop_model(rig, "a#0", f"gpu-1.example:{port}", instance="former")

    assert (reply.matched, reply.terminated) == (True, False)
    assert "instance mismatch" in reply.error
    assert stopped(rig) == set()


async def test_model_stop_by_instance_needs_no_address(rig: Rig) -> None:
    instance = rig.live("a#0", "echo").instance
    reply = await stop_model(rig, "a#0", "", instance=instance)

    assert reply.terminated


async def test_model_stop_of_a_process_that_stops_already_is_told_so(rig: Rig) -> None:
    port = rig.live("a#0", "echo", phase=ProcessPhase.STOPPING).port
    reply = await stop_model(rig, "a#0", f"h:{port}")

    assert (reply.matched, reply.terminated) == (True, False)
    assert "already stopping" in reply.error
    assert stopped(rig) == set()


async def test_model_stop_whose_free_fails_ends_the_process_and_says_so(rig: Rig) -> None:
    rig.supervision.free_trouble = "unimplemented"
    port = rig.live("a#0", "echo").port
    reply = await stop_model(rig, "a#0", f"h:{port}")

    assert (reply.freed, reply.terminated) == (False, True)
    assert reply.error == "the backend did not free its memory before it was ended: unimplemented"


async def test_model_stop_of_what_knows_no_free_is_no_error(rig: Rig) -> None:
    replica = rig.live("a#0", "vllm", protocol=Protocol.HTTP)
    reply = await stop_model(rig, "a#0", "", instance=replica.instance)

    assert (reply.freed, reply.terminated, reply.error) == (False, True, "")


async def test_forced_model_stop_frees_nothing_and_is_no_error(rig: Rig) -> None:
    port = rig.live("a#0", "echo").port
    reply = await stop_model(rig, "a#0", f"h:{port}", force=True)

    assert (reply.freed, reply.terminated, reply.error) == (False, True, "")
    assert rig.supervision.stopped == [(ProcessKey("a", 0), False)]


async def test_model_stop_of_a_process_that_does_not_end_says_so(rig: Rig) -> None:
    replica = rig.live("a#0", "echo")
    rig.supervision.immortal.add(replica.key)
    reply = await stop_model(rig, "a#0", f"h:{replica.port}", force=True)

    assert not reply.terminated
    assert reply.error == "it does not end"


async def test_unload_frees_the_process_at_the_address_and_no_other(rig: Rig) -> None:
    """Row A152."""
    rig.live("a#0", "echo")
    port = rig.live("b#0", "echo").port

    reply = await unload(rig, "b", f"gpu-1.example:{port}")

    assert reply.success
    assert rig.supervision.freed == [ProcessKey("b", 0)]
    assert stopped(rig) == set()


async def test_unload_without_an_address_frees_only_that_models_processes(rig: Rig) -> None:
    """Row A152, and never an arbitrary one."""
    for key in ("a#0", "b#0", "b#1"):
        rig.live(key, "echo")
    rig.live("b#2", "echo", phase=ProcessPhase.STOPPING)

    await unload(rig, "b")
    assert sorted(rig.supervision.freed) == [ProcessKey("b", 0), ProcessKey("b", 1)]

    rig.supervision.freed.clear()
    assert (await unload(rig, "nonesuch")).success
    assert rig.supervision.freed == []


async def test_unload_at_the_shared_address_of_http_processes_frees_only_the_named_one(rig: Rig) -> None:
    for key in ("a#0", "b#0"):
        rig.live(key, "vllm", protocol=Protocol.HTTP)

    await unload(rig, "b", "gpu-1.example:50050")

    assert rig.supervision.freed == [ProcessKey("b", 0)]


async def test_unload_is_a_success_also_when_free_fails(rig: Rig) -> None:
    rig.supervision.free_trouble = "unimplemented"
    rig.live("a#0", "echo")

    assert await unload(rig, "a") == ModelUnloadReply(success=True)


async def test_running_lists_what_lives_and_is_not_on_its_way_out(rig: Rig) -> None:
    ready = rig.live("org/a#b#1", "echo")
    busy = rig.live("b#0", "echo", phase=ProcessPhase.UNRESPONSIVE)
    rig.live("c#0", "echo", phase=ProcessPhase.STOPPING)
    rig.supervision.put(replace(rig.live("d#0", "echo", phase=ProcessPhase.WAITING), pid=0, port=0))

    reply = await rig.ask(subjects.models_running, ModelsRunning(), ModelsRunningReply)

    assert reply.models == (
        RunningModel(
            model_id="b", replica_index=0, address=f"gpu-1.example:{busy.port}", instance=busy.instance
        ),
        RunningModel(
            model_id="org/a#b",
            replica_index=1,
            address=f"gpu-1.example:{ready.port}",
            instance=ready.instance,
        ),
    )


async def test_running_of_an_idle_worker_is_an_empty_list(rig: Rig) -> None:
    assert await rig.say(subjects.models_running, b"{}") == [b'{"models":[]}']
