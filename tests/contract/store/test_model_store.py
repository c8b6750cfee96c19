"""ModelStore: configured models come, are replaced and go."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from remuda.accounts.keys import ApiKey, KeyScope
from remuda.core.errors import Conflict, NotFound
from remuda.core.ids import FrontendId
from remuda.models.files import Manifest, ManifestFile
from remuda.models.gguf import GgufHeader, ModelFacts
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
    Wish,
)
from remuda.ops.ports import Filter
from remuda.scheduler.model import Renaming, SeenFacts, StoredModel
from remuda.store.accounts import SqlKeyStore
from remuda.store.database import Database
from remuda.store.ops import SqlOpStore
from remuda.store.replicas import SqlModelStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(database: Database) -> SqlModelStore:
    return SqlModelStore(database)


def a_model(name: str = "qwen-2.5", text: str = "name: qwen\n") -> StoredModel:
    return StoredModel(name, text, revision="abc", origin="added")


async def test_model_is_read_back_as_it_was_given(store: SqlModelStore) -> None:
    got = await store.put_model(a_model())
    assert got.updated_at is not None
    assert replace(got, updated_at=None) == a_model()
    assert await store.models() == [got]


async def test_model_of_the_same_name_replaces_the_one_before(store: SqlModelStore) -> None:
    await store.put_model(a_model("b"))
    await store.put_model(a_model("a"))
    newer = await store.put_model(replace(a_model("b"), text="name: other\n", revision="def", origin="f"))
    assert [model.name for model in await store.models()] == ["a", "b"]
    assert (await store.models())[1] == newer


async def test_name_that_is_anothers_on_a_subject_is_refused(store: SqlModelStore) -> None:
    await store.put_model(a_model("qwen-2.5"))
    with pytest.raises(Conflict, match=r"'qwen-2-5'.*'qwen-2\.5'"):
        await store.put_model(a_model("qwen-2-5"))
    assert [model.name for model in await store.models()] == ["qwen-2.5"]


async def test_removed_model_is_gone_and_its_name_free(store: SqlModelStore) -> None:
    put = await store.put_model(a_model("qwen-2.5"))
    assert await store.remove_model("qwen-2.5") == put
    assert await store.models() == []
    with pytest.raises(NotFound, match=r"qwen-2\.5"):
        await store.remove_model("qwen-2.5")
    await store.put_model(a_model("qwen-2-5"))


async def test_model_put_by_two_frontends_at_once_is_there_once(
    store: SqlModelStore, other_frontend: Database
) -> None:
    both = (store, SqlModelStore(other_frontend))

    async def put(number: int) -> None:
        await both[number % 2].put_model(a_model(text=str(number)))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(put, number)
    assert len(await store.models()) == 1


async def test_of_two_new_models_of_one_name_one_is_put(
    store: SqlModelStore, other_frontend: Database
) -> None:
    both, done = (store, SqlModelStore(other_frontend)), list[StoredModel]()

    async def put(number: int) -> None:
        if made := await both[number % 2].put_new(a_model(text=str(number))):
            done.append(made)

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(put, number)
    assert [one.text for one in done] == [one.text for one in await store.models()]
    assert len(done) == 1


async def test_model_is_changed_only_if_it_is_as_it_was_seen(store: SqlModelStore) -> None:
    seen = await store.put_model(a_model())
    mine = await store.change_model(seen, replace(seen, text="mine", revision="m"))
    assert mine is not None
    assert await store.change_model(seen, replace(seen, text="theirs")) is None
    assert await store.change_model(a_model("nobody"), a_model("nobody", "x")) is None
    assert [(one.text, one.revision) for one in await store.models()] == [("mine", "m")]


async def test_of_two_changes_at_once_one_counts(store: SqlModelStore, other_frontend: Database) -> None:
    seen = await store.put_model(a_model())
    both, done = (store, SqlModelStore(other_frontend)), list[StoredModel]()

    async def change(number: int) -> None:
        if made := await both[number % 2].change_model(seen, replace(seen, text=str(number))):
            done.append(made)

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(change, number)
    assert [one.text for one in done] == [one.text for one in await store.models()]


async def test_renamed_model_takes_aliases_and_keys_along(database: Database, store: SqlModelStore) -> None:
    keys = SqlKeyStore(database)
    for number, named in enumerate((("other", "old"), (), ("other",))):
        at = datetime(2026, 1, 1, tzinfo=UTC)
        await keys.add_key(
            ApiKey(f"{number}", f"key-{number}", KeyScope.INFERENCE, f"{number}", "h", at, named)
        )
    before, alias = (
        await store.put_model(a_model("old")),
        await store.put_model(a_model("alias", "alias: old")),
    )
    renaming = Renaming(before, a_model("new", "name: new"), ((alias, replace(alias, text="alias: new")),))

    assert await store.rename_model(renaming) == ("key-0",)

    assert {one.name: one.text for one in await store.models()} == {"alias": "alias: new", "new": "name: new"}
    assert [key.models for key in await keys.keys()] == [("other", "new"), (), ("other",)]
    assert await store.rename_model(renaming) is None


async def test_old_name_is_kept_for_keys_where_it_stays_an_alias(
    database: Database, store: SqlModelStore
) -> None:
    keys, at = SqlKeyStore(database), datetime(2026, 1, 1, tzinfo=UTC)
    await keys.add_key(ApiKey("k", "key", KeyScope.INFERENCE, "d", "h", at, ("old",)))
    before = await store.put_model(a_model("old"))

    await store.rename_model(Renaming(before, a_model("new"), kept=a_model("old", "alias: new")))

    assert [one.name for one in await store.models()] == ["new", "old"]
    assert [key.models for key in await keys.keys()] == [("new", "old")]


async def test_name_that_is_taken_refuses_the_whole_renaming(store: SqlModelStore) -> None:
    before, _ = await store.put_model(a_model("old")), await store.put_model(a_model("qwen-2.5"))
    for name, said in (("qwen-2.5", "there is a model named 'qwen-2.5' already"), ("qwen-2-5", "on the bus")):
        with pytest.raises(Conflict, match=said):
            await store.rename_model(Renaming(before, a_model(name)))
    assert [one.name for one in await store.models()] == ["old", "qwen-2.5"]


# Models that the fleet has installed.


MANIFEST = Manifest(
    files=(ManifestFile(path="m/m.gguf", size=3, sha256="0" * 64),), source="https://a/m.gguf"
)
INSTALL = OpId("op-1")


async def an_install(database: Database, wish: Wish = Wish.RUN) -> SqlOpStore:
    """Whose first attempt is at work."""
    ops, source = SqlOpStore(database), Source("", uri="https://a/m.gguf", name="m", model=ModelSpec())
    now = (await ops.live()).now
    operation = Operation(INSTALL, Kind.INSTALL_MODEL, source, RollOut(1), "admin", now)
    step = Step(INSTALL, FRONTENDS, "frontends", Kind.INSTALL_MODEL, source, Goal(("model m",)))
    await ops.submit(operation, [step])
    begun = replace(step, state=State.RUNNING, attempt=1)
    await ops.commit([begun], FrontendId("f-1"), timedelta(seconds=20))
    if wish is not Wish.RUN:
        await ops.wish(INSTALL, wish)
    return ops


def installed_model() -> StoredModel:
    return replace(a_model("m"), manifest=MANIFEST, kept_by=FrontendId("f-1"))


async def test_an_installed_model_has_its_manifest_and_keeps_it_when_it_is_edited(
    store: SqlModelStore, database: Database
) -> None:
    ops = await an_install(database)
    put = await store.put_installed(installed_model(), None, INSTALL, 1)
    assert put is not None
    assert await store.models() == [put]
    await store.put_model(a_model("m", "name: m\nthreads: 2\n"))
    (edited,) = await store.models()
    assert (edited.manifest, edited.kept_by) == (MANIFEST, "f-1")
    view = await ops.view(INSTALL)
    assert (view.operation.source.uri, view.operation.model) == ("https://a/m.gguf", "m")
    assert [found.operation.id for found in await ops.views(Filter(model="m"))] == [INSTALL]


async def test_a_manifest_is_completed_unless_it_has_changed(
    store: SqlModelStore, database: Database
) -> None:
    await an_install(database)
    put = await store.put_installed(installed_model(), None, INSTALL, 1)
    assert put is not None
    told = MANIFEST.model_copy(update={"described": "m/m.gguf"})
    assert await store.describe_model(put, told)
    assert await store.models() == [replace(put, manifest=told)]
    assert not await store.describe_model(put, MANIFEST)
    assert not await store.describe_model(a_model("nobody"), told)


async def test_an_install_overwrites_nothing_that_it_has_not_seen(
    store: SqlModelStore, database: Database
) -> None:
    await an_install(database)
    by_hand = await store.put_model(a_model("m", "name: m\nthreads: 2\n"))
    with pytest.raises(Conflict, match="m was added while it was being installed"):
        await store.put_installed(installed_model(), None, INSTALL, 1)
    assert await store.models() == [by_hand]
    assert await store.put_installed(installed_model(), by_hand, INSTALL, 1) is not None


@pytest.mark.parametrize(("attempt", "wish"), [(2, Wish.RUN), (1, Wish.CANCEL), (1, Wish.PAUSE)])
async def test_what_is_over_or_unwanted_installs_nothing(
    store: SqlModelStore, database: Database, attempt: int, wish: Wish
) -> None:
    await an_install(database, wish)
    assert await store.put_installed(installed_model(), None, INSTALL, attempt) is None
    assert await store.models() == []


async def test_a_frontend_that_starts_again_lets_go_of_what_it_had_in_hand(database: Database) -> None:
    ops = await an_install(database)
    (request,) = (await ops.live()).requests
    assert request.awaited((await ops.live()).now)
    await ops.let_go(FrontendId("another"))
    assert (await ops.live()).requests == (request,)
    await ops.let_go(FrontendId("f-1"))
    live = await ops.live()
    assert not live.requests[0].awaited(live.now)


async def test_only_the_model_that_was_meant_is_removed(store: SqlModelStore) -> None:
    put = await store.put_model(a_model("m"))
    assert put.updated_at is not None
    assert await store.remove_written("m", "another time") is None
    assert await store.remove_written("m", put.updated_at.isoformat()) == put
    assert await store.remove_written("m", put.updated_at.isoformat()) is None


async def test_what_its_file_says_is_kept_until_the_configuration_is_another(store: SqlModelStore) -> None:
    model = await store.put_model(a_model())
    header = GgufHeader("llama", context_length=2048, head_counts_kv=(4,))
    seen = SeenFacts("m.gguf", "f-1", ModelFacts("gguf", header, 1 << 40, 7, "Q4_0", ("m.gguf",)))
    await store.note_seen(replace(model, text="another"), seen)
    assert (await store.models())[0].seen is None
    await store.note_seen(model, seen)
    assert await store.models() == [replace(model, seen=seen)], "and it is no change of the model"


async def test_file_does_not_replace_what_was_added(store: SqlModelStore) -> None:
    filed = replace(a_model(), text="from a file", origin="file:f-1:a.yaml")
    assert await store.put_from_file(filed) is not None
    assert await store.put_from_file(replace(filed, text="later")) is not None
    await store.put_model(a_model())
    assert await store.put_from_file(filed) is None
    assert [one.text for one in await store.models()] == [a_model().text]
