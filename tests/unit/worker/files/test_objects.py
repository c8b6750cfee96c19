"""files.ensure, stage, temp and listdir, as they are answered on the bus."""

import json
from pathlib import Path

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.ids import NodeId
from remuda.wire import subjects
from remuda.worker.files.service import FileService
from tests.support.objects import MemoryStorage
from tests.support.path_attacks import ATTACKS, SECRET, HostileTree, hostile_tree

pytestmark = pytest.mark.anyio

NODE = NodeId("n")
KEY = "models/qwen/weights.gguf"


class FileCommands:
    """What a frontend may ask of a worker with storage."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage = MemoryStorage()
        service = FileService(
            root / "models", clock=SystemClock(), entropy=SystemEntropy(), storage=self.storage
        )
        self._commands = {command.subject(NODE): command for command in service.commands}

    async def say(self, verb: str, payload: bytes) -> dict[str, object]:
        command = self._commands[f"nodes.n.files.{verb}"]
        reply = json.loads(await command.answer(payload))
        assert isinstance(reply, dict)
        return reply

    async def ask(self, verb: str, **fields: object) -> dict[str, object]:
        return await self.say(verb, json.dumps(fields).encode())

    @property
    def subjects(self) -> list[str]:
        return list(self._commands)


@pytest.fixture
def files(tmp_path: Path) -> FileCommands:
    for area in ("models", "data"):
        (tmp_path / "worker" / area).mkdir(parents=True)
    return FileCommands(tmp_path / "worker")


def test_nothing_is_subscribed_without_storage(tmp_path: Path) -> None:
    assert FileService(tmp_path, clock=SystemClock(), entropy=SystemEntropy()).commands == ()


def test_all_subjects_are_subscribed_with_it(files: FileCommands) -> None:
    of_files = (subjects.files_ensure, subjects.files_stage, subjects.files_temp, subjects.files_listdir)

    assert files.subjects == [subject(NODE) for subject in of_files]


@pytest.mark.parametrize("verb", ["ensure", "stage", "listdir"])
@pytest.mark.parametrize("payload", [b"", b"null", b"[]", b"{", b'{"key": 1, "key_prefix": 1}', b"\xff"])
async def test_a_malformed_request_is_answered(files: FileCommands, verb: str, payload: bytes) -> None:
    assert await files.say(verb, payload) == {"error": "invalid request"}


async def test_an_object_is_brought_once(files: FileCommands) -> None:
    """Row A156."""
    files.storage.objects[KEY] = b"content"
    path = files.root / "cache" / KEY

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(files.say, "ensure", json.dumps({"key": KEY}).encode())

    assert await files.ask("ensure", key=KEY) == {"local_path": str(path)}
    assert path.read_bytes() == b"content"
    assert files.storage.readings == [(KEY, 0)]
    assert [entry.name for entry in path.parent.iterdir()] == ["weights.gguf"]


async def test_a_missing_object_is_told(files: FileCommands) -> None:
    assert await files.ask("ensure", key=KEY) == {"error": f"not found: object {KEY}"}
    assert not (files.root / "cache" / KEY).exists()


async def test_an_object_that_breaks_off_is_continued_and_is_nothing_before(files: FileCommands) -> None:
    files.storage.objects[KEY] = b"0123456789"
    files.storage.breaks_after = 4

    assert await files.ask("ensure", key=KEY) == {"error": "broke off"}
    assert await files.ask("listdir", key_prefix="models-of-nobody") == {"error": "not found"}
    assert await files.ask("listdir", key_prefix="") == {"files": []}
    files.storage.breaks_after = None
    await files.ask("ensure", key=KEY)

    assert (files.root / "cache" / KEY).read_bytes() == b"0123456789"
    assert files.storage.readings == [(KEY, 0), (KEY, 4)]


async def test_two_versions_of_an_object_are_never_mixed(files: FileCommands) -> None:
    files.storage.objects[KEY] = b"0123456789"
    files.storage.breaks_after = 4
    await files.ask("ensure", key=KEY)
    files.storage.breaks_after = None
    files.storage.objects[KEY] = b"abcdefghij"
    files.storage.replaced_by = b"ABCDEFGHIJ"

    await files.ask("ensure", key=KEY)

    assert (files.root / "cache" / KEY).read_bytes() == b"ABCDEFGHIJ"
    assert [start for _, start in files.storage.readings] == [0, 0, 0]


async def test_files_of_cache_and_models_can_be_staged(files: FileCommands) -> None:
    """Row A157."""
    temp = str((await files.ask("temp"))["local_path"])
    (files.root / "models/m").write_bytes(b"model")
    output = files.root / Path(temp).relative_to(files.root)
    output.write_bytes(b"output")

    assert await files.ask("stage", local_path=temp, key="ephemeral/fetch/1/out") == {
        "key": "ephemeral/fetch/1/out"
    }
    await files.ask("stage", local_path=str(files.root / "models/m"), key="models/m")

    assert files.storage.objects == {"ephemeral/fetch/1/out": b"output", "models/m": b"model"}


async def test_temporary_files_have_a_folder_of_their_own(files: FileCommands) -> None:
    """Row A158."""
    for payload in (b"{}", b"", b"null"):
        path = Path(str((await files.say("temp", payload))["local_path"]))
        assert path.parent == files.root / "cache/staging-tmp"
        assert path.name.startswith("localai-staging-")
        assert path.name.endswith(".tmp")
    folder = files.root / "cache/staging-tmp"
    assert len(list(folder.iterdir())) == 3
    assert folder.stat().st_mode & 0o777 == 0o750


async def test_folders_are_listed_by_prefix(files: FileCommands) -> None:
    """Row A159."""
    for name in ("models/a/b.bin", "models/c", "data/d/e", "cache/models/f", "cache/x/g"):
        (files.root / name).parent.mkdir(parents=True, exist_ok=True)
        (files.root / name).write_bytes(b"x")
    listed = {"models/": ["a/b.bin", "c"], "models/a": ["b.bin"], "data/d": ["e"], "x": ["g"]}

    for prefix, found in listed.items():
        assert await files.ask("listdir", key_prefix=prefix) == {"files": found}
    (files.root / "models/empty").mkdir()
    assert await files.ask("listdir", key_prefix="models/empty") == {"files": []}
    assert "error" in await files.ask("listdir", key_prefix="models/c")


@pytest.fixture
def tree(files: FileCommands) -> HostileTree:
    return hostile_tree(files.root)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_key_or_path_leads_outside(files: FileCommands, tree: HostileTree, attack: str) -> None:
    text = ATTACKS[attack]
    for prefix in ("models/", "data/", "", "ephemeral/"):
        key = prefix + text
        files.storage.objects[key] = b"overwritten"
        behind_link = attack.startswith(("link", "new file")) and prefix == ""
        if behind_link or "link" not in attack:
            assert "error" in await files.ask("ensure", key=key), key
        listed = await files.ask("listdir", key_prefix=key)
        assert "error" in listed, (key, listed)
        assert tree.untouched()
    files.storage.objects.clear()
    for area in ("cache", "models", "data", "staging"):
        for path in (f"{files.root}/{area}/{text}", text, f"{files.root}/{area}/../{text}"):
            reply = await files.ask("stage", local_path=path, key="stolen")
            assert reply in ({"error": "path outside allowed directories"}, {"error": "not found"}), path
    if "link" not in attack:  # With which nothing is wrong as a name of an object.
        assert "error" in await files.ask("stage", local_path=f"{files.root}/models/x", key=text)
    assert files.storage.objects == {}
    assert tree.untouched()


@pytest.mark.parametrize(
    "path", ["{outside}/secret", "/etc/passwd", "etc/passwd", "", "/", "{root}", "{root}/models"]
)
async def test_only_files_of_allowed_folders_are_staged(
    files: FileCommands, tree: HostileTree, path: str
) -> None:
    named = path.format(outside=tree.outside, root=files.root)

    assert await files.ask("stage", local_path=named, key="stolen") == {
        "error": "path outside allowed directories"
    }
    assert SECRET not in files.storage.objects.values()
