"""What people may do to models."""

import re
from hashlib import sha256
from pathlib import Path

import pytest

from remuda.core.errors import Conflict, Invalid, NoCapacity, NotFound, Problem
from remuda.ops.model import (
    FRONTENDS,
    Goal,
    Kind,
    ModelSpec,
    Operation,
    OpId,
    RollOut,
    Source,
    State,
    Step,
    UnloadCause,
    UnloadReason,
    Wish,
)
from remuda.ops.ports import Filter, View
from remuda.scheduler.claimed_names import ClaimedNames
from remuda.scheduler.model import ReplicaState, StoredModel, target_of
from remuda.scheduler.service import AlreadyLoaded, ModelProblem, Models
from remuda.scheduler.unloader import UnloadRequests
from tests.unit.scheduler.placers import PlacingRig
from tests.unit.scheduler.rig import NODE, OTHER_NODE, a_model

pytestmark = pytest.mark.anyio


async def hash_of(path: Path) -> str:
    """At once: in virtual time there are no threads."""
    return _hash(path)


def _hash(path: Path) -> str:
    if not path.is_file():
        raise NotFound(f"{path} is not there")
    return sha256(path.read_bytes()).hexdigest()


class Served(PlacingRig):
    def __init__(self, models_path: Path = Path("/models")) -> None:
        super().__init__(models_path)
        self.refreshed = 0
        unloads = UnloadRequests(self.operations, self.standings, self.clock, self.entropy, self)
        self.service = Models(
            self.catalogue,
            self.models,
            self.replicas,
            self.operations,
            self.placing(),
            unloads,
            self.standings,
            table=self,
            claims=ClaimedNames(self.operations, self, self.catalogue.models_path, hash_of),
        )

    async def refresh(self) -> None:
        self.refreshed += 1

    async def load(self, by: str = "ada") -> View:
        """The operation that loads qwen."""
        view = await self.service.load("qwen", by)
        assert isinstance(view, View)
        return view

    async def being_installed(self, name: str, sha256: str = "") -> None:
        source = Source("", uri=f"https://hub.test/{name}.gguf", name=name, model=ModelSpec(sha256))
        op = OpId("3f2a1b0c-1")
        operation = Operation(op, Kind.INSTALL_MODEL, source, RollOut(1), "ada", self.clock.now())
        step = Step(op, FRONTENDS, "frontends", Kind.INSTALL_MODEL, source, Goal((f"model {name}",)))
        await self.operations.submit(operation, [step])


@pytest.fixture
async def served() -> Served:
    made = Served()
    await made.configure()
    return made


# Configured.


async def test_model_that_is_added_can_be_asked_for(served: Served) -> None:
    told = await served.service.add(a_model("new", "spice: hot\n"))
    assert (told.model.config.id, told.replaced, told.unknown_keys) == ("new", False, ("spice",))
    assert [one.config.id for one in await served.service.configured()] == ["new", "qwen"]
    assert served.changes == 1


async def test_model_that_is_added_again_is_replaced(served: Served) -> None:
    told = await served.service.add(a_model("qwen", "context_size: 512\n"))
    assert (told.replaced, told.unchanged) == (True, False)
    assert (await served.service.get("qwen")).config.context_size == 512
    assert (await served.service.add(a_model("qwen", "context_size: 512\n"))).unchanged


async def test_a_model_of_another_file_is_replaced_only_when_that_is_asked_for(served: Served) -> None:
    mine, other = (f"name: mine\nbackend: echo\nparameters:\n  model: {file}.gguf\n" for file in "ab")
    assert not (await served.service.add(mine, only_new=True)).replaced
    assert (await served.service.add(mine, only_new=True)).unchanged
    with pytest.raises(Conflict, match=r"a model mine already, with the file a\.gguf") as refused:
        await served.service.add(other, only_new=True)
    assert "--replace" in refused.value.hint
    assert (await served.service.get("mine")).stored.text == mine
    assert (await served.service.add(other)).replaced


async def test_a_model_that_is_being_installed_is_not_just_unknown(served: Served) -> None:
    await served.being_installed("slow")
    with pytest.raises(NotFound, match="'slow' yet: it is being installed") as refused:
        await served.service.get("slow")
    assert "remuda ops cancel 3f2a1b0c" in refused.value.hint


async def test_a_name_under_which_a_model_is_being_installed_is_taken(served: Served) -> None:
    await served.being_installed("new")
    with pytest.raises(Conflict, match=r"being installed from https://hub\.test/new\.gguf.* 3f2a1b0c"):
        await served.service.add(a_model("new"))
    assert [one.config.id for one in await served.service.configured()] == ["qwen"]


async def test_the_very_file_that_an_install_is_to_fetch_may_be_brought_by_hand(tmp_path: Path) -> None:
    served, content = Served(tmp_path), b"GGUF and more"
    (tmp_path / "new.gguf").write_bytes(content)
    await served.being_installed("new", sha256(content).hexdigest())

    told = await served.service.add(a_model("new"), only_new=True)

    assert told.model.config.id == "new"
    assert [one for one in told.warnings if "operation 3f2a1b0c) is cancelled" in one]
    view = await served.operations.view(OpId("3f2a1b0c-1"))
    assert (view.operation.wish, served.signals) == (Wish.CANCEL, 1)
    assert [one.config.id for one in await served.service.configured()] == ["new"]


@pytest.mark.parametrize("pinned", ["", "ab" * 32])
async def test_any_other_file_waits_for_the_install(tmp_path: Path, pinned: str) -> None:
    served = Served(tmp_path)
    (tmp_path / "new.gguf").write_bytes(b"GGUF")
    await served.being_installed("new", pinned)

    with pytest.raises(Conflict, match="being installed"):
        await served.service.add(a_model("new"))
    with pytest.raises(Conflict, match="being installed"):  # Its file is not even here.
        await served.service.add("name: new\nbackend: llama-cpp\nparameters: {model: elsewhere.gguf}\n")
    view = await served.operations.view(OpId("3f2a1b0c-1"))
    assert (view.operation.wish, served.signals) == (Wish.RUN, 0)


async def test_model_that_is_disabled_is_there_until_it_is_removed(served: Served) -> None:
    told = await served.service.add(a_model("later", "disabled: true\n"))
    assert told.model.config.disabled
    assert [one.config.id for one in await served.service.configured()] == ["later", "qwen"]
    with pytest.raises(Conflict, match="disabled"):
        await served.service.load("later", "test")
    await served.service.remove("later", "test")
    assert [one.config.id for one in await served.service.configured()] == ["qwen"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("alias: nobody\n", "alias: there is no model 'nobody'"),
        ("alias: new\n", "alias: new cannot be another name for itself"),
        ("alias: qwen-8b\n", "alias: qwen-8b is itself another name for qwen"),
        ("context_size: 99999999\n", "context_size: 99999999 tokens are more than any model takes"),
        ("context_size: -7\n", "context_size: -7 tokens are too few"),
    ],
)
async def test_what_cannot_work_is_refused_before_it_is_added(served: Served, more: str, said: str) -> None:
    await served.service.add("name: qwen-8b\nalias: qwen\n")
    with pytest.raises(Invalid, match=re.escape(said)):
        await served.service.add(a_model("new", more))
    assert [one.config.id for one in await served.service.configured()] == ["qwen", "qwen-8b"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            "parameters: {model: /etc/passwd}",
            "parameters.model: '/etc/passwd' is outside the models folder",
        ),
        ("mmproj: /etc/shadow", "mmproj: '/etc/shadow' is outside the models folder"),
        ("lora_adapters: [a, //etc/b]", "lora_adapters: '//etc/b' is outside the models folder"),
    ],
)
async def test_a_model_names_no_file_outside_the_folder(served: Served, keys: str, said: str) -> None:
    with pytest.raises(Invalid, match=re.escape(said)) as refused:
        await served.service.add(f"name: new\nbackend: llama-cpp\n{keys}\n")
    assert str(served.catalogue.models_path) in refused.value.hint


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../evil", "line 1: name: '../evil' cannot be the name of a file"),
        ("/etc/passwd", "line 1: name: '/etc/passwd' cannot be the name of a file"),
        ("a//b", "line 1: name: 'a//b' cannot be the name of a file"),
        ("-rf", "line 1: name: '-rf' must not begin with -"),
        ("a;reboot", "line 1: name: 'a;reboot' must not contain ;, which shells interpret"),
        ("$(reboot)", "line 1: name: '$(reboot)' must not contain $ ( ), which shells interpret"),
        ("a\\\\b", r"line 1: name: 'a\\b' must not contain"),
    ],
)
async def test_a_new_model_has_a_name_that_can_be_pasted(served: Served, name: str, said: str) -> None:
    with pytest.raises(Invalid, match="^" + re.escape(said)):
        await served.service.add(f'name: "{name}"\nbackend: echo\n')


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "qwen3:8b", "gpt-4.1_mini@v2+", "大模型", "my model"])
async def test_names_as_people_have_them_are_accepted(served: Served, name: str) -> None:
    assert (await served.service.add(f"name: {name}\nbackend: echo\n")).model.config.id == name


async def test_a_model_may_name_a_file_by_its_place_within_the_folder(served: Served) -> None:
    file = served.catalogue.models_path / "a.gguf"

    told = await served.service.add(f"name: new\nbackend: llama-cpp\nparameters: {{model: {file}}}\n")

    assert told.model.config.file == str(file)


async def test_text_that_is_no_model_is_refused(served: Served) -> None:
    with pytest.raises(Invalid):
        await served.service.add("name: [")
    assert len(await served.service.configured()) == 1


async def test_model_of_a_file_is_changed_there_and_nowhere_else(served: Served) -> None:
    await served.models.put_model(StoredModel("filed", a_model("filed"), "r", "file:f-1:a.yaml"))
    await served.catalogue.refresh()
    with pytest.raises(Conflict, match="file"):
        await served.service.add(a_model("filed"))
    with pytest.raises(Conflict, match="file"):
        await served.service.remove("filed", "ada")


async def test_model_that_is_not_there_is_not_found(served: Served) -> None:
    for work in (served.service.get("nobody"), served.service.load("nobody", "ada")):
        with pytest.raises(NotFound):
            await work


async def test_removed_model_takes_its_replicas_along(served: Served) -> None:
    await served.loaded()
    await served.service.remove("qwen", "ada")
    assert await served.service.configured() == []
    [unload] = (await served.operations.live()).operations
    assert (unload.kind, unload.asked_by) == (Kind.UNLOAD, "ada")
    assert unload.target is not None
    assert unload.target.reason == UnloadReason(UnloadCause.MODEL_REMOVED)


async def test_a_model_that_an_operation_has_just_removed_is_no_longer_listed(served: Served) -> None:
    await served.service.remove("qwen", "an operation")
    before = served.refreshed
    with pytest.raises(NotFound):
        await served.service.remove("qwen", "ada")
    assert served.refreshed == before + 1


# Loaded and unloaded.


async def test_load_begins_one_more_replica(served: Served) -> None:
    await served.loaded()
    view = await served.load()
    assert (view.operation.kind, target_of(view.steps[0]).key.index) == (Kind.LOAD, 1)


async def test_a_lost_replica_is_loaded_again_unless_its_model_has_as_many_as_it_may(served: Served) -> None:
    await served.configure(a_model("qwen", "max_replicas: 2\n"))
    await served.loaded()
    await served.service.load_again("qwen", "remuda")
    assert len(await served.rows()) == 2
    await served.service.load_again("qwen", "remuda")
    assert len(await served.rows()) == 2


async def test_load_that_is_under_way_is_joined(served: Served) -> None:
    first = await served.load()
    assert (await served.load("eve")).operation.id == first.operation.id
    assert len(await served.rows()) == 1


async def test_load_that_fits_nowhere_says_why_for_each_node(served: Served) -> None:
    for machine in served.machines:
        machine.files = {}
    with pytest.raises(NoCapacity, match=r"gpu-1, gpu-2: "):
        await served.service.load("qwen", "ada")


async def test_load_without_nodes_says_so(served: Served) -> None:
    served.machines.clear()
    with pytest.raises(NoCapacity, match="there are no nodes"):
        await served.service.load("qwen", "ada")


async def test_a_model_that_fits_on_no_further_node_is_loaded_already(served: Served) -> None:
    await served.loaded()
    served.machines[1].files = {}
    loaded = await served.service.load("qwen", "ada")
    assert isinstance(loaded, AlreadyLoaded)
    assert loaded.nodes == ("gpu-1",)
    [why] = loaded.others
    assert why.startswith("gpu-2: qwen.gguf was not in its ")
    assert not (await served.operations.live()).operations


# What stands in a model's way.


async def test_file_with_a_context_that_no_model_takes_is_a_problem_of_its_model(served: Served) -> None:
    """One that is added so is refused; a file is there, whatever it says."""
    text = a_model("qwen", "context_size: 99999999\n")
    await served.models.put_model(StoredModel("qwen", text, "r", "file:f-1:a.yaml"))
    await served.service.configured()
    [(model, found)] = (await served.service.failures()).items()
    assert model == "qwen"
    assert "more than any model takes" in found.text
    assert await problem(served) == found.text


async def problem(served: Served) -> str:
    return (await served.service.problem(await served.service.get("qwen"))).text


async def fail(served: Served) -> None:
    """A load of it, which fails."""
    step = (await served.load()).steps[0]
    replica = (await served.rows())[0]
    await served.over(step, State.FAILED, Problem("load_failed", "the file is broken"))
    await served.replicas.remove(replica)


async def test_model_that_could_be_loaded_has_no_problem(served: Served) -> None:
    assert await problem(served) == ""


async def test_problem_of_a_model_that_fits_nowhere_is_every_nodes_reason(served: Served) -> None:
    for machine in served.machines:
        machine.files = {}
    assert re.match(r"no node can take qwen: gpu-1, gpu-2: .*qwen.gguf", await problem(served))
    assert not await served.rows()


async def test_nodes_that_are_only_about_to_come_are_no_problem(served: Served) -> None:
    served.machines.clear()
    assert await problem(served) == ""


async def test_problem_is_that_the_last_load_failed_until_the_model_changes(served: Served) -> None:
    await fail(served)
    told = "it could not be loaded on gpu-1: the file is broken"
    assert await problem(served) == told
    [over] = await served.operations.views(Filter(finished=True))
    assert over.operation.finished_at is not None
    assert await served.service.failures() == {"qwen": ModelProblem(told, over.operation.finished_at)}
    await served.service.add(a_model("qwen", "context_size: 512\n"))
    assert await problem(served) == ""
    assert await served.service.failures() == {}


async def test_failure_on_a_node_that_was_removed_is_no_problem(served: Served) -> None:
    await fail(served)
    assert served.machines.pop(0).name == "gpu-1"
    assert (await served.service.failures(), await problem(served)) == ({}, "")


async def test_failure_that_was_dismissed_or_made_good_is_no_problem(served: Served) -> None:
    await fail(served)
    [over] = await served.operations.views(Filter(finished=True))
    await served.operations.dismiss([over.operation.id])
    assert await problem(served) == ""
    await fail(served)
    await served.loaded()
    assert await problem(served) == ""


async def test_unload_is_an_operation_for_each_replica(served: Served) -> None:
    for index, node in ((0, NODE), (1, OTHER_NODE)):
        await served.loaded(index=index, node=node)
    views = await served.service.unload("qwen", "ada")
    targets = [target_of(view.steps[0]) for view in views]
    assert sorted(target.key.index for target in targets) == [0, 1]
    assert {target.reason for target in targets} == {UnloadReason(UnloadCause.ASKED, by="ada")}


async def test_unload_on_one_node_leaves_the_others(served: Served) -> None:
    for index, node in ((0, NODE), (1, OTHER_NODE)):
        await served.loaded(index=index, node=node)
    [view] = await served.service.unload("qwen", "ada", node=OTHER_NODE)
    assert view.steps[0].node == OTHER_NODE


async def test_unload_asked_for_twice_is_one_operation(served: Served) -> None:
    await served.loaded()
    [first] = await served.service.unload("qwen", "ada")
    [second] = await served.service.unload("qwen", "ada")
    assert first.operation.id == second.operation.id


async def test_unload_of_what_is_being_loaded_gives_that_up(served: Served) -> None:
    load = await served.load()
    [view] = await served.service.unload("qwen", "ada")
    assert (view.operation.kind, view.operation.asked_by) == (Kind.UNLOAD, "ada")
    [step] = (await served.operations.view(load.operation.id)).steps
    assert step.replaced_by == view.operation.id


async def test_unload_of_nothing_is_nothing(served: Served) -> None:
    assert await served.service.unload("qwen", "ada") == []


async def test_unload_reaches_a_process_that_no_row_stands_for(served: Served) -> None:
    row = await served.loaded()
    served.machine.running = served.runs(row)
    assert await served.replicas.remove(row)
    [view] = await served.service.unload("qwen", "ada")
    assert (view.steps[0].node, view.operation.kind) == (NODE, Kind.UNLOAD)
    assert await served.service.unload("qwen", "ada", node=OTHER_NODE) == []


@pytest.mark.parametrize("state", ["stopping", "failed"])
async def test_process_that_is_about_to_be_gone_needs_no_unload(served: Served, state: str) -> None:
    row = await served.loaded()
    served.machine.running = served.runs(row, state=state)
    assert await served.replicas.remove(row)
    assert await served.service.unload("qwen", "ada") == []


async def test_replicas_are_listed_in_order(served: Served) -> None:
    await served.configure(a_model("another"))
    for model in ("qwen", "another"):
        await served.loaded(model)
    listed = await served.service.replicas()
    assert [(one.key.model, one.state) for one in listed] == [
        ("another", ReplicaState.LOADED),
        ("qwen", ReplicaState.LOADED),
    ]
