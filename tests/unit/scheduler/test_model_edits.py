"""Changes to configured models, by several people and beside files that describe some of them."""

import pytest

from remuda.core.errors import Conflict, Invalid, NotFound
from remuda.ops.model import Kind, UnloadCause, UnloadReason
from remuda.scheduler import model_edits
from remuda.scheduler.model import ADDED, StoredModel
from remuda.scheduler.model_edits import ModelEdits, Stale
from tests.unit.scheduler.rig import a_model
from tests.unit.scheduler.test_model_service import Served

pytestmark = pytest.mark.anyio

TEXT = "# Ours.\nname: own\nbackend: echo\nspice: hot  # Unknown here.\n"


class Folder:
    """That of frontend f-1."""

    def __init__(self) -> None:
        self.aside: list[str] = []
        self.trouble: OSError | None = None

    def has(self, model: StoredModel) -> bool:
        return model.frontend == "f-1"

    async def set_aside(self, file: str) -> str:
        if self.trouble is not None:
            raise self.trouble
        self.aside.append(file)
        return f"/models/{file}.imported"


class Edited(Served):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Folder()
        self.edits = ModelEdits(self.service, self.models, self.operations, self.folder, self)

    async def text(self, name: str = "own") -> str:
        return (await self.service.get(name)).stored.text

    async def etag(self, name: str = "own") -> str:
        return (await self.service.get(name)).stored.etag

    async def filed(self, name: str, origin: str, text: str = "") -> None:
        await self.models.put_model(StoredModel(name, text or a_model(name), "r", origin))


@pytest.fixture
async def edited(monkeypatch: pytest.MonkeyPatch) -> Edited:
    async def inline(work: object) -> object:
        assert callable(work)
        return work()

    monkeypatch.setattr(model_edits, "run_sync", inline)  # In virtual time there are no threads.
    made = Edited()
    await made.configure()
    await made.service.add(TEXT)
    return made


async def test_text_is_replaced_by_who_has_seen_it(edited: Edited) -> None:
    seen = await edited.etag()
    told = await edited.edits.replace("own", TEXT + "f16: true\n", seen)
    assert (told.replaced, told.unchanged, told.unknown_keys) == (True, False, ("spice",))
    with pytest.raises(Stale, match="own was changed since you read it") as refused:
        await edited.edits.replace("own", TEXT + "f16: false\n", seen)
    assert refused.value.current.text == TEXT + "f16: true\n" == await edited.text()


async def test_a_preview_says_what_a_change_would_do_and_changes_nothing(edited: Edited) -> None:
    seen = await edited.etag()
    told = await edited.edits.preview("own", TEXT + "f16: true\n", seen)
    assert (told.reloads, told.unchanged, told.unknown_keys) == (True, False, ("spice",))
    described = await edited.edits.preview("own", TEXT + "description: new\n", seen)
    assert not described.reloads
    with pytest.raises(Invalid, match="line 5: threads: must be a whole number"):
        await edited.edits.preview("own", TEXT + "threads: many\n", seen)
    with pytest.raises(Stale):
        await edited.edits.preview("own", TEXT, "another")
    assert (await edited.text(), await edited.etag()) == (TEXT, seen)
    assert (await edited.edits.replace("own", TEXT + "f16: true\n", seen)).reloads


async def test_text_that_is_the_same_changes_nothing(edited: Edited) -> None:
    assert (await edited.edits.replace("own", TEXT, "*")).unchanged


async def test_an_edit_to_a_backend_that_no_node_has_is_warned_of(edited: Edited) -> None:
    told = await edited.edits.patch("own", {}, ["backend=lama-cpp"])
    assert told.no_node
    assert any(one.startswith("no node can take own: ") and "lama-cpp" in one for one in told.warnings)


async def test_keys_are_set_and_everything_else_stays(edited: Edited) -> None:
    await edited.edits.patch("own", {"context_size": 512, "parameters": {"seed": 1}})
    assert await edited.text() == TEXT + "context_size: 512\nparameters:\n  seed: 1\n"
    await edited.edits.patch("own", {}, ["context_size=null"])
    assert await edited.text() == TEXT + "parameters:\n  seed: 1\n"
    with pytest.raises(Stale):
        await edited.edits.patch("own", {"f16": True}, etag="another")
    with pytest.raises(Invalid, match="nothing to set"):
        await edited.edits.patch("own", {})


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"threads": "many"}, "line 5: threads: must be a whole number, not 'many'"),
        ({"context_size": 1}, "line 5: context_size: 1 tokens are too few"),
        ({"alias": "nobody"}, "line 5: alias: there is no model 'nobody'"),
        ({"name": "new"}, "line 2: name: this is own, and an edit does not rename it"),
        ({"mmproj": "../x"}, "line 5: mmproj: '../x' is outside the models folder"),
    ],
)
async def test_what_cannot_work_is_refused_with_its_line(
    edited: Edited, patch: dict[str, str | int], said: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await edited.edits.patch("own", dict(patch))
    assert refused.value.message.startswith(said)
    assert await edited.text() == TEXT


async def test_model_that_is_not_there_is_not_edited(edited: Edited) -> None:
    with pytest.raises(NotFound):
        await edited.edits.patch("nobody", {"f16": True})


async def test_model_of_a_file_is_changed_nowhere_else_and_the_file_is_named(edited: Edited) -> None:
    await edited.filed("filed", "file:f-1@alpha:a.yaml")
    said = "filed is described by the file a.yaml in the models folder on alpha"
    with pytest.raises(Conflict, match=said) as refused:
        await edited.edits.patch("filed", {"f16": True})
    assert "remuda models import filed" in refused.value.hint
    with pytest.raises(Conflict, match=said):
        await edited.edits.rename("filed", "new", "ada")


# Taken over.


async def test_model_of_a_file_is_taken_over_and_the_file_set_aside(edited: Edited) -> None:
    await edited.filed("filed", "file:f-1@alpha:a.yaml")
    taken = await edited.edits.take_over_file("filed")
    assert (taken.aside, taken.trouble, edited.folder.aside) == ("/models/a.yaml.imported", "", ["a.yaml"])
    assert (await edited.service.get("filed")).stored.origin == ADDED
    await edited.edits.patch("filed", {"f16": True})
    with pytest.raises(Conflict, match="not described by a file"):
        await edited.edits.take_over_file("filed")


async def test_file_of_another_frontend_is_not_taken_over_here(edited: Edited) -> None:
    await edited.filed("filed", "file:f-2@beta:a.yaml")
    with pytest.raises(Conflict, match="on beta"):
        await edited.edits.take_over(a_model("filed"))


async def test_file_that_cannot_be_renamed_is_said(edited: Edited) -> None:
    await edited.filed("filed", "file:f-1:a.yaml")
    edited.folder.trouble = PermissionError(13, "Permission denied")
    taken = await edited.edits.take_over(a_model("filed"))
    assert taken.trouble.startswith("a.yaml could not be renamed, and is ignored from now on: ")
    assert (await edited.service.get("filed")).stored.origin == ADDED


async def test_model_that_no_file_describes_is_just_added(edited: Edited) -> None:
    taken = await edited.edits.take_over("name: new\nbackend: echo\n")
    assert (taken.added.replaced, taken.aside) == (False, "")


# Renamed.


async def test_renamed_model_unloads_its_replicas_and_says_why(edited: Edited) -> None:
    await edited.loaded()
    renamed = await edited.edits.rename("qwen", "qwen3", "ada")
    assert [one.config.id for one in await edited.service.configured()] == ["own", "qwen3"]
    [unload] = renamed.unloads
    assert unload.operation.target is not None
    assert unload.operation.target.reason == UnloadReason(UnloadCause.MODEL_RENAMED)


async def test_rename_changes_one_line(edited: Edited) -> None:
    await edited.edits.rename("own", "mine", "ada")
    assert await edited.text("mine") == TEXT.replace("name: own", "name: mine")


async def test_aliases_follow_a_rename(edited: Edited) -> None:
    await edited.service.add("name: second # ours\nalias: own\n")
    renamed = await edited.edits.rename("own", "mine", "ada")
    assert renamed.aliases == ("second",)
    assert await edited.text("second") == "name: second # ours\nalias: mine\n"


async def test_alias_in_a_file_refuses_a_rename(edited: Edited) -> None:
    await edited.filed("second", "file:f-2:b.yaml", "name: second\nalias: own\n")
    with pytest.raises(Conflict, match=r"second is an alias of own, and the file b\.yaml says so"):
        await edited.edits.rename("own", "mine", "ada")


async def test_old_name_can_stay_as_an_alias(edited: Edited) -> None:
    await edited.edits.rename("own", "mine", "ada", keep_alias=True)
    assert (await edited.service.get("own")).config.alias == "mine"


async def test_a_name_that_an_install_has_reserved_is_taken_by_nothing_else(edited: Edited) -> None:
    await edited.being_installed("mine")
    with pytest.raises(Conflict, match="mine is being installed"):
        await edited.edits.rename("own", "mine", "ada")
    with pytest.raises(Conflict, match="mine is being installed"):
        await edited.edits.take_over(a_model("mine"))
    assert (await edited.service.get("own")).config.id == "own"


async def test_model_that_is_being_loaded_is_not_renamed(edited: Edited) -> None:
    view = await edited.load()
    assert view.operation.kind is Kind.LOAD
    with pytest.raises(Conflict, match=f"an operation on qwen is under way: load {view.operation.id}"):
        await edited.edits.rename("qwen", "qwen3", "ada")


@pytest.mark.parametrize("name", ["own", "qwen", "../x", "", "a#1", "-x"])
async def test_name_that_cannot_be_had_is_refused(edited: Edited, name: str) -> None:
    with pytest.raises((Conflict, Invalid)):
        await edited.edits.rename("own", name, "ada")
    assert await edited.text() == TEXT
