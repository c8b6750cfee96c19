"""A load ends with a replica that answers, or with no row; what it gave up half-way is stopped."""

from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from remuda.core.errors import NodeUnreachable, Problem
from remuda.core.ids import BootId
from remuda.models.reading import read_model
from remuda.ops.model import DoneWithNote, NotNeeded, OpId, Step, UnloadCause, UnloadReason
from remuda.scheduler.catalogue import Catalogued
from remuda.scheduler.loader import Loader, LoadLimits
from remuda.scheduler.measured_speed import Rate
from remuda.scheduler.model import Place, ReplicaState, StoredModel, target_of
from remuda.scheduler.stager import Staged, Stager
from remuda.scheduler.worker_calls import Installing
from remuda.wire.backends import BackendInstallReply
from remuda.wire.models import ModelStop, ModelStopReply, RunningModel
from remuda.wire.nodes import Work
from tests.support.virtual_ops import time_passes
from tests.support.waiting import wait_until
from tests.unit.scheduler.rig import NODE, Rig, a_model

pytestmark = pytest.mark.anyio

DAY_S = 24 * 3600.0


@pytest.fixture
async def rig() -> Rig:
    made = Rig()
    await made.configure()
    return made


async def problem_of(loader: Loader, step: Step) -> Problem:
    problem = await loader.load(step)
    assert isinstance(problem, Problem)
    return problem


# What it does when all is well.


async def test_replica_is_loaded_in_the_process_that_the_worker_started(rig: Rig) -> None:
    _, step = await rig.claimed()
    assert await rig.loader().load(step) is None
    row = await rig.row()
    assert (row.state, row.address, row.instance) == (ReplicaState.LOADED, "10.0.0.5:50100", "i-1")
    assert row.boot == "boot-1"
    [(endpoint, model, _)] = rig.engine.loads
    assert (endpoint.address, endpoint.token, model) == ("10.0.0.5:50100", "shared", "qwen")
    assert rig.worker.stopped == []
    assert rig.changes == 2, "everybody is told that it is loading, and that it is loaded"


async def test_worker_is_asked_for_this_replica_by_this_attempt(rig: Rig) -> None:
    _, step = await rig.claimed()
    await rig.loader().load(step)
    [asked] = rig.worker.installs
    assert (asked.backend, asked.model_id, asked.replica_index) == ("llama-cpp", "qwen", 0)
    assert (asked.op_id, asked.attempt, asked.backend_galleries) == (step.op, 1, "[]")


async def test_server_that_speaks_http_can_be_started_with_what_the_model_needs(rig: Rig) -> None:
    await rig.configure(
        "name: wide\nbackend: vllm\ncontext_size: 4096\nparallel: 3\n"
        "options: [--seed=7]\nparameters: {model: org/weights}\n"
    )
    _, step = await rig.claimed("wide")
    await rig.loader().load(step)
    [asked] = rig.worker.installs
    assert (asked.protocol, asked.model_path) == ("http", "org/weights")
    assert asked.options == ("--seed=7", "context_size:4096", "parallel:3")


async def test_how_long_an_install_took_is_told_where_the_node_had_to_install(rig: Rig) -> None:
    rig.worker.takes_s = 30.0
    await rig.configure(a_model("phi"))
    _, has = await rig.claimed()
    await rig.loader().load(has)
    assert rig.took == []
    rig.machine.installed = ()
    _, lacks = await rig.claimed("phi")
    await rig.loader().load(lacks)
    assert [(kind, node, model) for kind, node, model, _ in rig.took] == [(Rate.INSTALL, NODE, "phi")]
    assert rig.took[0][3] == pytest.approx(30, abs=1)


async def test_no_address_in_the_answer_means_that_of_the_node(rig: Rig) -> None:
    rig.worker.reply = BackendInstallReply(success=True)
    _, step = await rig.claimed()
    assert await rig.loader().load(step) is None
    assert (await rig.row()).address == rig.machine.address
    assert rig.engine.loads[0][0].address == rig.machine.address


@pytest.mark.parametrize(
    ("told", "shared", "place"),
    [
        ("", False, Place("/models", "/models/qwen.gguf")),
        ("/srv/models", False, Place("/srv/models", "/srv/models/qwen.gguf")),
        ("/srv/models", True, Place("/models", "/models/qwen.gguf")),
    ],
)
async def test_model_is_where_its_node_says_unless_all_share_our_folder(
    rig: Rig, told: str, shared: bool, place: Place
) -> None:
    rig.machine.models_path = told
    _, step = await rig.claimed()
    await rig.loader(shared=shared).load(step)
    assert rig.engine.loads[0][2] == place
    assert rig.worker.installs[0].model_path == place.model_file


class _Counted(Stager):
    """Moves nothing, and counts how often it was to."""

    def __init__(self) -> None:
        self.asked = 0
        self.staged = Staged()

    async def stage(self, step: Step, model: Catalogued, asking: Installing) -> Staged:
        self.asked += 1
        return self.staged


@pytest.mark.parametrize(("shared", "asked"), [(True, 0), (False, 1)])
async def test_with_one_folder_of_models_for_all_nothing_moves(rig: Rig, shared: bool, asked: int) -> None:
    stager = _Counted()
    _, step = await rig.claimed()
    assert await rig.loader(shared=shared, stager=stager).load(step) is None
    assert stager.asked == asked


async def test_load_says_where_the_bytes_came_from(rig: Rig) -> None:
    stager = _Counted()
    stager.staged = Staged(taken={"attic": 3 << 20, "object storage": 0})
    _, step = await rig.claimed()
    assert await rig.loader(stager=stager).load(step) == DoneWithNote("3.0 MiB came from attic")


async def test_peer_whose_folder_nobody_knows_is_told_no_paths(rig: Rig) -> None:
    rig.machine.reports = False
    _, step = await rig.claimed()
    await rig.loader().load(step)
    assert (rig.engine.loads[0][2].models_path, rig.engine.loads[0][2].model_file) == ("", "")


async def test_model_that_is_no_file_is_left_to_the_backend(rig: Rig) -> None:
    await rig.configure("name: remote\nbackend: llama-cpp\nparameters: {model: org/weights}\n")
    _, step = await rig.claimed("remote")
    await rig.loader().load(step)
    assert rig.engine.loads[0][2] == Place("/models", "")


@pytest.mark.parametrize(
    ("origin", "where"), [("added", "qwen: "), ("file:f-1:old.yaml", "qwen (old.yaml): ")]
)
async def test_path_that_an_earlier_release_let_in_is_refused_when_it_is_used(
    rig: Rig, origin: str, where: str
) -> None:
    text = a_model(more="mmproj: /etc/shadow\n")
    await rig.models.put_model(StoredModel("qwen", text, read_model(text).revision, origin))
    await rig.catalogue.refresh()
    _, step = await rig.claimed()

    problem = await problem_of(rig.loader(), step)

    assert problem.message == f"{where}mmproj: '/etc/shadow' is outside the models folder"
    assert "/models" in problem.hint
    assert (rig.worker.installs, rig.engine.loads) == ([], [])


async def test_path_within_the_folder_of_the_node_or_the_frontend_is_used(rig: Rig) -> None:
    await rig.configure(a_model(more="mmproj: /models/a.gguf\n"))
    _, step = await rig.claimed()
    assert await rig.loader().load(step) is None


async def test_load_waits_until_those_that_make_room_are_gone(rig: Rig) -> None:
    await rig.configure(a_model("old"))
    old = await rig.loaded("old")
    _, step = await rig.claimed(evict=[old.key])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.loader().load, step)
        await time_passes(30)
        assert rig.worker.asked == [], "nothing is begun before there is room"
        assert await rig.replicas.remove(await rig.row("old"))
        await wait_until(lambda: bool(rig.engine.loads))


async def test_load_does_not_wait_for_what_goes_for_another_reason(rig: Rig) -> None:
    await rig.configure(a_model("old"))
    old = await rig.loaded("old")
    asked = UnloadReason(UnloadCause.ASKED, by="ada")
    assert await rig.replicas.move(old, replace(old, state=ReplicaState.UNLOADING, why=asked))
    _, step = await rig.claimed()
    assert await rig.loader().load(step) is None
    assert anyio.current_time() < 10


# Every way to fail leaves no row.


async def test_room_that_is_not_made_ends_the_load(rig: Rig) -> None:
    await rig.configure(a_model("old"))
    old = await rig.loaded("old")
    _, step = await rig.claimed(evict=[old.key])
    problem = await problem_of(rig.loader(), step)
    assert problem.message == "those that were to make room on gpu-1 did not go in time"
    assert [row.key.model for row in await rig.rows()] == ["old"]
    assert rig.worker.asked == []


async def test_node_that_left_the_fleet_ends_the_load(rig: Rig) -> None:
    _, step = await rig.claimed()
    rig.machines.clear()
    problem = await problem_of(rig.loader(), step)
    assert "no longer in the fleet" in problem.message
    assert await rig.rows() == ()


async def test_install_that_fails_tells_the_workers_words(rig: Rig) -> None:
    rig.worker.reply = BackendInstallReply(error="no space left on the disk")
    _, step = await rig.claimed()
    problem = await problem_of(rig.loader(), step)
    assert problem.message == "llama-cpp on gpu-1: no space left on the disk"
    assert not problem.retryable, "the next request may choose another node"
    assert await rig.rows() == ()
    assert rig.worker.stopped == []


@pytest.mark.parametrize(
    ("address", "why"),
    [("10.0.0.66:50100", "not the host it has registered"), ("10.0.0.5:port", "not HOST:PORT")],
)
async def test_address_that_is_not_the_nodes_own_ends_the_load(rig: Rig, address: str, why: str) -> None:
    rig.worker.reply = BackendInstallReply(success=True, address=address, protocol="http")
    _, step = await rig.claimed()
    assert why in (await problem_of(rig.loader(), step)).message
    assert rig.engine.loads == []


async def test_worker_that_does_not_listen_ends_the_load(rig: Rig) -> None:
    rig.worker.trouble = NodeUnreachable("nobody listens there")
    _, step = await rig.claimed()
    assert (await problem_of(rig.loader(), step)).message == "nobody listens there"
    assert await rig.rows() == ()


async def test_worker_that_registered_a_moment_ago_may_listen_in_another(rig: Rig) -> None:
    rig.worker.trouble = NodeUnreachable("nothing listens there")
    rig.worker.trouble_ends_s = anyio.current_time() + 1
    _, step = await rig.claimed()
    assert await rig.loader().load(step) is None
    assert len(rig.worker.installs) > 1


@pytest.mark.parametrize("phase", ["install", "load"])
async def test_machine_that_answers_on_no_line_is_left_for_another_node(rig: Rig, phase: str) -> None:
    rig.worker_http.up = False
    rig.worker.takes_s, rig.engine.takes_s = (DAY_S, 0.0) if phase == "install" else (0.0, DAY_S)
    _, step = await rig.claimed()
    began_s = anyio.current_time()
    problem = await problem_of(rig.loader(), step)
    assert (problem.code, problem.retryable) == ("node_unreachable", False)
    assert problem.message == "gpu-1 answers neither over HTTP nor over the bus"
    assert anyio.current_time() - began_s < 60, "in virtual time: long before the load's own limit"
    assert await rig.rows() == ()
    assert rig.worker.stopped == [], "there is nobody to tell"


async def test_worker_that_answers_on_one_line_is_waited_for(rig: Rig) -> None:
    rig.worker_http.up = False
    rig.worker.runs[NODE] = ()
    rig.worker.takes_s = 100.0
    _, step = await rig.claimed()
    assert await rig.loader().load(step) is None


async def test_process_that_refused_its_model_is_stopped(rig: Rig) -> None:
    rig.engine.refusal = "unknown model architecture"
    _, step = await rig.claimed()
    assert (await problem_of(rig.loader(), step)).message == "unknown model architecture"
    assert await rig.rows() == ()
    assert rig.worker.stopped == ["i-1"], "nobody would see that it runs"


async def test_row_that_was_forgotten_meanwhile_ends_the_load(rig: Rig) -> None:
    rig.engine.takes_s = 5
    _, step = await rig.claimed()

    async def forget() -> None:
        await wait_until(lambda: bool(rig.engine.loads))
        assert await rig.replicas.remove(await rig.row())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(forget)
        problem = await problem_of(rig.loader(), step)
    assert problem.message == "qwen#0 was given up while it was being loaded"
    assert await rig.rows() == ()


async def test_defect_of_the_engine_leaves_neither_row_nor_process(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.engine, "load", broken)
    _, step = await rig.claimed()
    with pytest.raises(ExceptionGroup):
        await rig.loader().load(step)
    assert await rig.rows() == ()
    assert rig.worker.stopped == ["i-1"]


# Deadlines.


async def test_load_call_that_takes_too_long_stops_exactly_its_process(rig: Rig) -> None:
    rig.engine.takes_s = DAY_S
    _, step = await rig.claimed()
    problem = await problem_of(rig.loader(LoadLimits(load=timedelta(seconds=90))), step)
    assert problem.message == "qwen was not loaded on gpu-1 within 90 s"
    assert anyio.current_time() < 100
    assert rig.worker.asked[-1] == ModelStop(
        model_name="qwen",
        process_key="qwen#0",
        expected_address="10.0.0.5:50100",
        instance="i-1",
        config_revision=target_of(step).revision,
    )
    assert await rig.rows() == ()


async def test_install_during_which_nothing_moves_is_given_up(rig: Rig) -> None:
    rig.worker.takes_s = DAY_S
    _, step = await rig.claimed()
    problem = await problem_of(rig.loader(), step)
    assert problem.code == "load_timed_out"
    assert anyio.current_time() == pytest.approx(25 * 60, abs=5)
    assert await rig.rows() == ()


async def test_what_a_worker_started_without_saying_so_is_stopped_by_its_key(rig: Rig) -> None:
    rig.worker.takes_s = DAY_S
    claimed, step = await rig.claimed()
    await problem_of(rig.loader(), step)
    assert rig.worker.stopped_unheard == [(claimed.node, claimed.key)]
    assert rig.worker.stopped == []


async def test_bytes_that_move_push_the_deadline_on(rig: Rig) -> None:
    rig.worker.takes_s = 3600.0
    _, step = await rig.claimed()
    async with anyio.create_task_group() as tasks:

        async def trickle() -> None:
            while True:
                await time_passes(60)
                rig.moved_bytes += 1

        tasks.start_soon(trickle)
        assert await rig.loader().load(step) is None
        tasks.cancel_scope.cancel()
    assert (await rig.row()).state is ReplicaState.LOADED


async def test_bytes_that_stop_to_move_end_it_five_minutes_later(rig: Rig) -> None:
    rig.worker.takes_s = DAY_S
    _, step = await rig.claimed()
    async with anyio.create_task_group() as tasks:

        async def trickle() -> None:
            for _ in range(40):
                await time_passes(60)
                rig.moved_bytes += 1

        tasks.start_soon(trickle)
        problem = await problem_of(rig.loader(), step)
    assert problem.code == "load_timed_out"
    assert anyio.current_time() == pytest.approx(45 * 60, abs=5)


# Lost answers.


async def test_worker_whose_answer_was_lost_is_asked_again(rig: Rig) -> None:
    rig.worker.takes_s = DAY_S
    _, step = await rig.claimed()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.loader().load, step)
        for _ in range(3):  # Heartbeats that tell of no work.
            await time_passes(10)
            rig.machine.sequence += 1
            rig.worker.takes_s = 0
    first, second = rig.worker.installs
    assert first == second, "the same attempt: whoever did it already says so"
    assert (await rig.row()).state is ReplicaState.LOADED


async def test_worker_that_has_it_in_hand_is_left_alone(rig: Rig) -> None:
    rig.worker.takes_s = 300
    _, step = await rig.claimed()
    rig.machine.work = (Work(op_id=step.op, attempt=1),)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.loader().load, step)
        for _ in range(20):
            await time_passes(10)
            rig.machine.sequence += 1
    assert len(rig.worker.installs) == 1


async def test_report_from_before_it_was_asked_says_nothing(rig: Rig) -> None:
    rig.worker.takes_s = 300
    _, step = await rig.claimed()
    assert await rig.loader().load(step) is None
    assert len(rig.worker.installs) == 1


async def test_peer_that_runs_it_is_asked_again_for_where(rig: Rig) -> None:
    rig.machine.reports = False
    rig.worker.takes_s = DAY_S
    claimed, step = await rig.claimed()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.loader().load, step)
        await wait_until(lambda: bool(rig.worker.installs))
        rig.worker.runs[claimed.node] = [RunningModel(model_id="qwen", replica_index=0)]
        rig.worker.takes_s = 0
    first, second = rig.worker.installs
    assert first == second
    assert (await rig.row()).state is ReplicaState.LOADED
    assert anyio.current_time() < 60


async def test_peer_that_knows_nothing_of_it_is_left_for_another_node(rig: Rig) -> None:
    rig.machine.reports = False
    rig.worker.takes_s = DAY_S
    claimed, step = await rig.claimed()
    rig.worker.runs[claimed.node] = []
    problem = await problem_of(rig.loader(), step)
    assert (problem.code, problem.message) == ("node_unreachable", "the worker on gpu-1 has lost this load")
    assert anyio.current_time() < 90
    assert await rig.rows() == ()
    assert rig.worker.stopped_unheard == [], "it says that there is nothing to stop"


async def test_peer_that_cannot_be_asked_is_waited_for(rig: Rig) -> None:
    rig.machine.reports = False
    rig.worker.takes_s = 600
    _, step = await rig.claimed()
    assert await rig.loader().load(step) is None
    assert len(rig.worker.installs) == 1


async def test_peer_that_fetches_the_backend_is_waited_for(rig: Rig) -> None:
    rig.machine.reports = False
    rig.worker.takes_s, rig.worker.builds = 600, ()
    claimed, step = await rig.claimed()
    rig.worker.runs[claimed.node] = []
    assert await rig.loader().load(step) is None
    assert len(rig.worker.installs) == 1


# Cancelled.


async def test_cancelled_load_stops_its_process_and_leaves_no_row(rig: Rig) -> None:
    rig.engine.takes_s = DAY_S
    _, step = await rig.claimed()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.loader().load, step)
        await wait_until(lambda: bool(rig.engine.loads))
        tasks.cancel_scope.cancel()
    assert rig.worker.stopped == ["i-1"]
    assert await rig.rows() == ()


async def test_load_that_is_cancelled_before_its_worker_answers_is_stopped_by_its_key(rig: Rig) -> None:
    rig.worker.takes_s = DAY_S
    claimed, step = await rig.claimed()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.loader().load, step)
        await wait_until(lambda: bool(rig.worker.installs))
        tasks.cancel_scope.cancel()
    assert rig.worker.stopped_unheard == [(claimed.node, claimed.key)]
    assert await rig.rows() == ()


async def test_taken_over_load_does_not_stop_what_it_is_about_to_ask_for(rig: Rig) -> None:
    _, step = await rig.claimed()
    assert await rig.loader().load(replace(step, attempt=2)) is None
    assert rig.worker.stopped_unheard == [], "nobody answers a stop: it might reach the next process"


async def test_worker_that_hangs_keeps_no_row_of_what_was_given_up(rig: Rig) -> None:
    rig.engine.takes_s = rig.worker.stop_takes_s = DAY_S
    _, step = await rig.claimed()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.loader().load, step)
        await wait_until(lambda: bool(rig.engine.loads))
        tasks.cancel_scope.cancel()
    assert anyio.current_time() < 60
    assert await rig.rows() == ()


async def test_worker_that_cannot_stop_it_keeps_no_row_of_it(rig: Rig) -> None:
    rig.engine.takes_s = DAY_S
    rig.worker.stop_reply = ModelStopReply(matched=True, error="it does not end")
    _, step = await rig.claimed()
    await problem_of(rig.loader(LoadLimits(load=timedelta(seconds=9))), step)
    assert await rig.rows() == ()


# Taken over, or over before it began.


async def test_load_of_a_dead_owner_begins_with_stopping_what_that_had_begun(rig: Rig) -> None:
    claimed, step = await rig.claimed()
    begun = replace(
        claimed, state=ReplicaState.LOADING, address="10.0.0.5:50099", instance="i-0", boot=BootId("boot-1")
    )
    assert await rig.replicas.move(claimed, begun) is not None
    assert await rig.loader().load(replace(step, attempt=2)) is None
    stop, install = rig.worker.asked
    assert isinstance(stop, ModelStop)
    assert (stop.instance, stop.expected_address) == ("i-0", "10.0.0.5:50099")
    assert install == rig.worker.installs[0]
    assert (await rig.row()).instance == "i-1"


async def test_process_of_a_peer_is_named_by_the_address_that_the_peer_knows(rig: Rig) -> None:
    claimed, step = await rig.claimed()
    begun = replace(claimed, state=ReplicaState.LOADING, address="10.0.0.5:50099")
    assert await rig.replicas.move(claimed, begun) is not None
    assert await rig.loader().load(replace(step, attempt=2)) is None
    stop = rig.worker.asked[0]
    assert isinstance(stop, ModelStop)
    assert (stop.instance, stop.expected_address) == ("", "127.0.0.1:50099")


async def test_process_of_a_dead_owner_that_does_not_end_ends_the_load(rig: Rig) -> None:
    claimed, step = await rig.claimed()
    begun = replace(claimed, state=ReplicaState.LOADING, address="10.0.0.5:50099", instance="i-0")
    assert await rig.replicas.move(claimed, begun) is not None
    rig.worker.stop_reply = ModelStopReply(matched=True, error="it is stuck in the driver")
    problem = await problem_of(rig.loader(), replace(step, attempt=2))
    assert problem.message == "qwen#0 was not stopped: it is stuck in the driver"
    assert await rig.rows() == ()


async def test_load_whose_owner_died_after_it_was_done_is_done(rig: Rig) -> None:
    claimed, step = await rig.claimed()
    serving = await rig.replicas.move(
        claimed, replace(claimed, state=ReplicaState.LOADED, address="a:1", instance="i-0")
    )
    assert await rig.loader().load(replace(step, attempt=2)) is None
    assert rig.worker.asked == [], "it serves: nobody takes it away from those it serves"
    assert await rig.rows() == (serving,)


async def test_model_that_changed_before_its_load_began_is_not_loaded(rig: Rig) -> None:
    _, step = await rig.claimed()
    await rig.models.put_model(
        replace((await rig.models.models())[0], text=a_model("qwen", "context_size: 512\n"), revision="other")
    )
    assert (await problem_of(rig.loader(), step)).code == "model_changed"
    assert await rig.rows() == ()
    assert (rig.worker.asked, rig.worker.stopped_unheard) == ([], [])


async def test_model_that_was_removed_before_its_load_began_is_not_loaded(rig: Rig) -> None:
    _, step = await rig.claimed()
    await rig.models.remove_model("qwen")
    assert (await problem_of(rig.loader(), step)).code == "model_changed"
    assert await rig.rows() == ()


async def test_load_of_a_row_that_is_gone_does_nothing(rig: Rig) -> None:
    claimed, step = await rig.claimed()
    assert await rig.replicas.remove(claimed)
    assert await rig.loader().load(step) == NotNeeded("qwen#0 is not wanted any more")
    assert rig.worker.asked == []


async def test_row_of_another_operation_is_none_of_its_business(rig: Rig) -> None:
    claimed, step = await rig.claimed()
    assert isinstance(await rig.loader().load(replace(step, op=OpId("another"))), NotNeeded)
    assert await rig.rows() == (claimed,)
