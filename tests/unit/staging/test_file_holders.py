"""Who has a model's files: this frontend, others, storage, nodes, and where it was installed from."""

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.ids import FrontendId, NodeId
from remuda.fleet.verdicts import ObservedNode
from remuda.models.config import ModelConfig
from remuda.models.file_hashes import FileHashes
from remuda.models.files import ManifestFile, NeededFile, make_manifest
from remuda.models.reading import read_model
from remuda.ops.model import OpId
from remuda.scheduler.catalogue import Catalogued, ModelCatalogue
from remuda.scheduler.file_holders import ANOTHER_FRONTEND, ORIGIN, STORAGE, FileHolders, ModelsFile
from remuda.scheduler.model import ADDED, ReplicaState, StoredModel
from remuda.scheduler.staging import (
    NOTHING_TO_COPY,
    Arrivals,
    CopyPlan,
    arrivals_elsewhere,
    began_of,
    copy_plan,
    givers,
    to_check,
    told_by_nodes,
)
from remuda.wire import subjects
from remuda.wire.codec import decode
from remuda.wire.files import FilesHeld
from remuda.wire.nodes import ModelFile
from tests.support.clocks import HandClock
from tests.support.nodes import NOON
from tests.support.waiting import wait_until
from tests.unit.scheduler.standing import a_row
from tests.unit.scheduler.test_staging import a_node

pytestmark = pytest.mark.anyio

CONTENT = b"weights"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
YAML = "name: qwen\nbackend: llama-cpp\nparameters: {model: qwen.gguf}\n"
FILE = NeededFile("qwen.gguf", len(CONTENT), SHA256)


@dataclass
class Lines:
    """A bus that keeps what is said."""

    said: list[bytes] = field(default_factory=list)

    async def publish(self, subject: str, payload: bytes) -> None:
        assert subject == subjects.FILES_HELD
        self.said.append(payload)

    async def subscribe(self, subject: str, handler: object) -> object:
        return None

    async def request(self, subject: str, payload: bytes, limit: object) -> bytes:
        raise NotImplementedError


@dataclass
class Store:
    rows: tuple[StoredModel, ...]

    async def models(self) -> tuple[StoredModel, ...]:
        return self.rows


@dataclass
class Storage:
    there: bool = False

    async def address(self, model: str, file: NeededFile) -> str:
        return "http://s3/signed" if self.there else ""


class Frontend:
    """Of a fleet whose store has the model qwen."""

    def __init__(self, folder: Path, name: str, *, installed: bool = False, origin: str = "") -> None:
        file = ManifestFile(path="qwen.gguf", size=len(CONTENT), sha256=SHA256, origin=origin)
        manifest = make_manifest((file,)) if installed else None
        row = StoredModel("qwen", YAML, "r1", ADDED, manifest=manifest)
        self.models = folder / name
        self.models.mkdir()
        self.clock, self.lines, self.storage = HandClock(), Lines(), Storage()
        self.catalogue = ModelCatalogue(Store((row,)), self.models)  # type: ignore[arg-type]
        self.hashes = FileHashes()
        self.holders = FileHolders(
            FrontendId(name),
            lambda: f"http://{name}:8080",
            self.catalogue,
            self.hashes,
            self.lines,
            self.clock,
            self.storage,
            answered_s=0.2,
        )

    async def model(self) -> Catalogued:
        await self.catalogue.refresh()
        found = self.catalogue.find("qwen")
        assert found is not None
        return found

    async def tells(self, other: "Frontend") -> FilesHeld:
        await self.model()
        await self.holders._publish()
        message = decode(FilesHeld, self.lines.said[-1])
        other.holders._receive(message)
        return message

    def put(self) -> None:
        (self.models / "qwen.gguf").write_bytes(CONTENT)


async def test_a_frontend_that_has_the_files_is_who_others_name(tmp_path: Path) -> None:
    has, lacks = Frontend(tmp_path, "has", installed=True), Frontend(tmp_path, "lacks", installed=True)
    has.put()
    assert (await lacks.holders.needed(await lacks.model(), ()))[0].elsewhere == ""
    await has.tells(lacks)
    (file,) = await lacks.holders.needed(await lacks.model(), ())
    assert (file.here, file.elsewhere) == (False, ANOTHER_FRONTEND)
    assert lacks.holders.frontends(file) == ["http://has:8080"]

    lacks.clock.advance(timedelta(seconds=60))
    assert lacks.holders.frontends(file) == [], "it has not been heard of for a minute"


async def test_files_without_a_manifest_are_told_once_there_is_another_frontend(tmp_path: Path) -> None:
    """Nothing is read for a frontend that is alone."""
    has, lacks = Frontend(tmp_path, "has"), Frontend(tmp_path, "lacks")
    has.put()
    assert (await has.tells(lacks)).files == ()
    await lacks.tells(has)
    assert [file.path for file in (await has.tells(lacks)).files] == ["qwen.gguf"]
    (file,) = await lacks.holders.needed(await lacks.model(), ())
    assert (file.path, file.sha256, file.elsewhere) == ("qwen.gguf", SHA256, ANOTHER_FRONTEND)


async def test_frontend_that_does_not_know_a_models_files_asks_the_others_before_it_says_so(
    tmp_path: Path,
) -> None:
    has, lacks = Frontend(tmp_path, "has"), Frontend(tmp_path, "lacks")
    await has.tells(lacks)
    await lacks.tells(has)
    has.put()  # A moment ago: it has told of nothing yet.
    lacks.lines.said.clear()
    lacks.holders._answered_s = 30.0
    found: list[tuple[NeededFile, ...]] = []

    async def look() -> None:
        found.append(await lacks.holders.needed(await lacks.model(), ()))

    async with anyio.create_task_group() as looking:
        looking.start_soon(look)
        looking.start_soon(look)
        await wait_until(lambda: len(lacks.lines.said) == 1)
        answering = decode(FilesHeld, lacks.lines.said[0])
        assert (answering.asks, found) == (True, [])
        has.holders._receive(answering)
        async with anyio.create_task_group() as running:
            before = len(has.lines.said)
            running.start_soon(has.holders._broadcast.run)
            await wait_until(lambda: len(has.lines.said) > before and bool(_files(has.lines.said[-1])))
            running.cancel_scope.cancel()
        lacks.holders._receive(decode(FilesHeld, has.lines.said[-1]))
    assert [[file.path for file in files] for files in found] == [["qwen.gguf"]] * 2
    assert len(lacks.lines.said) == 1, "both waited for one answer"


def _files(payload: bytes) -> object:
    return decode(FilesHeld, payload).files


async def test_files_of_a_path_that_leads_elsewhere_are_not_believed(tmp_path: Path) -> None:
    one = Frontend(tmp_path, "one")
    told = FilesHeld.model_validate(
        {"frontend": "b", "url": "http://b", "files": [{"model": "qwen", "path": "../x", "size": 1}]}
    )
    one.holders._receive(told)
    assert await one.holders.needed(await one.model(), ()) == ()


@pytest.mark.parametrize(
    ("stored", "origin", "elsewhere"),
    [(True, "https://h/q", STORAGE), (False, "https://h/q", ORIGIN), (False, "", "")],
)
async def test_storage_and_the_origin_count_as_well(
    tmp_path: Path, stored: bool, origin: str, elsewhere: str
) -> None:
    one = Frontend(tmp_path, "one", installed=True, origin=origin)
    one.storage.there = stored
    files = await one.holders.needed(await one.model(), ())
    assert files[0].elsewhere == elsewhere
    node = a_node("n")
    expected = CopyPlan(len(CONTENT), elsewhere) if elsewhere else None
    assert copy_plan(files, node, [node]) == expected


async def test_copies_are_those_of_other_frontends_and_of_storage(tmp_path: Path) -> None:
    has, lacks = Frontend(tmp_path, "has", installed=True), Frontend(tmp_path, "lacks", installed=True)
    wanted = [ModelsFile("qwen", replace(FILE, here=False))]
    assert await lacks.holders.copies(wanted) == frozenset()
    lacks.storage.there = True
    assert await lacks.holders.copies(wanted) == {("qwen.gguf", len(CONTENT), SHA256)}
    assert await lacks.holders.copies([]) == frozenset(), "storage is asked for these alone"
    lacks.storage.there = False
    has.put()
    await has.tells(lacks)
    assert await lacks.holders.copies([]) == {("qwen.gguf", len(CONTENT), SHA256)}


# Nodes.


def telling(name: str, *files: ModelFile) -> ObservedNode:
    node = a_node(name)
    assert node.report is not None
    return replace(node, report=node.report.model_copy(update={"model_files": files}))


def configured(file: str, more: str = "") -> ModelConfig:
    return read_model(f"name: m\nbackend: llama-cpp\nparameters: {{model: {file}}}\n{more}")


def known(path: str, sha256: str = SHA256) -> ModelFile:
    return ModelFile(path=path, size=7, sha256=sha256)


def test_file_that_only_a_node_has_is_needed_with_its_hash_or_without() -> None:
    there = telling("a", known("q.gguf"), known("other.gguf"))
    assert told_by_nodes(configured("q.gguf"), [there]) == (NeededFile("q.gguf", 7, SHA256, here=False),)
    unread = NeededFile("q.gguf", 7, here=False)
    assert told_by_nodes(configured("q.gguf"), [telling("a", known("q.gguf", ""))]) == (unread,)
    assert told_by_nodes(configured("x.gguf"), [there]) == ()


def test_file_that_no_worker_has_read_is_copied_to_nodes_that_have_none_of_its_name() -> None:
    a, b, c = telling("a", known("q.gguf", "")), telling("b"), telling("c", ModelFile(path="q.gguf", size=9))
    files = told_by_nodes(configured("q.gguf"), [a, b, c])

    assert copy_plan(files, b, [a, b, c]) == CopyPlan(7, "a")
    assert copy_plan(files, a, [a, b, c]) == NOTHING_TO_COPY
    assert copy_plan(files, c, [a, b, c]) == NOTHING_TO_COPY, "the file there is its own"


def test_unread_files_of_a_node_are_compared_where_others_of_their_model_come_from_elsewhere() -> None:
    one, two = NeededFile("bert/config.json", 7, here=False), NeededFile("bert/x.safetensors", 7, here=False)
    assert to_check([one, two], [], shared=False) == []
    assert to_check([one, two], [two], shared=False) == [one, two]
    known, own = replace(one, sha256=SHA256), replace(two, here=True)
    assert to_check([known, own], [], shared=False) == [known, own]
    assert to_check([known, own], [], shared=True) == [known]


def test_parts_folders_and_companions_of_a_model_on_a_node_belong_to_it() -> None:
    parts = [known("m-00001-of-00002.gguf"), known("m-00002-of-00002.gguf")]
    config = configured("m-00001-of-00002.gguf")
    assert len(told_by_nodes(config, [telling("a", *parts)])) == 2
    assert told_by_nodes(config, [telling("a", *parts[:1])]) == (), "a part of it is missing"
    folder = telling("a", known("bert/config.json"), known("bert/model.safetensors"))
    assert len(told_by_nodes(configured("bert"), [folder])) == 2
    with_projector = configured("q.gguf", "mmproj: p.gguf\n")
    both = telling("a", known("q.gguf"), known("p.gguf"))
    assert {file.path for file in told_by_nodes(with_projector, [both])} == {"q.gguf", "p.gguf"}


def test_nodes_that_want_a_file_at_once_take_it_from_each_other() -> None:
    """Each takes from one that began before it, so that no two wait for each other; the first from none."""
    nodes = [a_node(name) for name in "abcde"]
    arrivals, takes = Arrivals(), dict[str, list[str]]()
    with ExitStack() as stack:
        for place, view in enumerate(nodes):
            began = NOON + timedelta(seconds=place), OpId(f"op-{place}")
            stack.enter_context(arrivals.of([SHA256], view.standing.node.id, began))
        for view in nodes:
            node = view.standing.node
            before = arrivals.before(SHA256, node.id)
            found = givers(FILE, nodes, node, before, arrivals.takers(SHA256))
            arrivals.takes(SHA256, node.id, found[0].node.id if found else None)
            takes[node.name] = [one.node.name for one in found]
            assert not any(one.whole for one in found)
    assert [found[:1] for found in takes.values()] == [[], ["a"], ["b"], ["c"], ["d"]]


@given(st.permutations(range(6)), st.lists(st.booleans(), min_size=6, max_size=6))
def test_loads_of_two_frontends_make_one_row_and_never_wait_for_each_other(
    order: list[int], sides: list[bool]
) -> None:
    """Their rows tell each frontend of the other's, whichever asks first; the contents have several names."""
    nodes = [a_node(f"n{number}") for number in range(6)]
    rows = [
        a_row(
            f"q{number}",
            node=f"n{number}",
            state=ReplicaState.STAGING,
            op=f"op-{number}",
            since_s=60 - number,
        )
        for number in range(6)
    ]
    files_of = {f"q{number}": [replace(FILE, path=f"{number}.gguf")] for number in range(6)}
    arrivals, takes = {side: Arrivals() for side in (False, True)}, dict[str, str]()
    with ExitStack() as stack:
        for number in order:
            node, mine = nodes[number].standing.node, arrivals[sides[number]]
            stack.enter_context(mine.of([SHA256], node.id, began_of(rows[number])))
            elsewhere = arrivals_elsewhere(FILE, [row for row in rows if row.node != node.id], files_of)
            before = mine.before(SHA256, node.id, elsewhere)
            found = givers(FILE, nodes, node, before, mine.takers(SHA256))
            takes[node.name] = found[0].node.name if found else ""
    assert [name for name, giver in takes.items() if not giver] == ["n0"], "only the first reads the origin"
    assert all(giver < name for name, giver in takes.items())


def test_other_content_that_is_on_its_way_elsewhere_does_not_count() -> None:
    rows = [
        a_row("q", node="n", state=ReplicaState.STAGING),
        a_row("p", node="m", state=ReplicaState.LOADING),
    ]
    other = replace(FILE, sha256="0" * 64)
    assert arrivals_elsewhere(FILE, rows, {"q": [other], "p": [FILE]}) == {}
    assert list(arrivals_elsewhere(FILE, rows, {"q": [replace(FILE, sha256="")]})) == ["n"]


def test_node_that_has_all_of_it_comes_before_one_that_is_fetching_it_until_it_is_busier() -> None:
    whole, coming, receiver = a_node("w", (FILE.path, FILE.size)), a_node("c"), a_node("r")
    nodes, node = [whole, coming, receiver], receiver.standing.node
    free = givers(FILE, nodes, node, [NodeId("c")])
    busy = givers(FILE, nodes, node, [NodeId("c")], {NodeId("w"): 1})
    assert [one.node.name for one in free] == ["w", "c"]
    assert [one.node.name for one in busy] == ["c", "w"]


def test_arrival_that_is_over_is_forgotten() -> None:
    arrivals = Arrivals()
    first, second = (NOON, OpId("1")), (NOON, OpId("2"))
    with arrivals.of([SHA256], NodeId("a"), first), arrivals.of([SHA256], NodeId("b"), second):
        arrivals.takes(SHA256, NodeId("b"), NodeId("a"))
        assert arrivals.before(SHA256, NodeId("b")) == ["a"]
        assert arrivals.takers(SHA256) == {"a": 1}
    assert arrivals.before(SHA256, NodeId("b")) == []
    assert arrivals.takers(SHA256) == {}
