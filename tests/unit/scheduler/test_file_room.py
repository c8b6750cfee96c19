"""Room is made as far as a worker has said so, whatever its report said before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest

from remuda.core.errors import NodeUnreachable
from remuda.core.ids import BootId, NodeId
from remuda.fleet.health import Standing
from remuda.fleet.model import StoredReport
from remuda.models.files import NeededFile
from remuda.scheduler.disk_room import DropPlan
from remuda.scheduler.file_room import FileRoom, FileRoomDeps, NoRoomForFiles
from remuda.wire.codec import encode
from remuda.wire.files import FilesDrop, FilesDropReply
from remuda.wire.nodes import ArrivedFile, ModelFile, Report
from tests.unit.scheduler.standing import a_view, rows

pytestmark = pytest.mark.anyio

MB = 1 << 20
FILE = ModelFile(path="old.gguf", size=3 * MB, sha256="5a", brought=True, used_ms=1, models=("old",))


@dataclass
class Fleet:
    """One node with a file that is gone by now: the answer to an earlier request was lost."""

    fetched_bytes: int | None
    configured: Mapping[str, Any] = field(default_factory=dict)
    asked: list[FilesDrop] = field(default_factory=list)

    async def files_of_all(self) -> Mapping[str, Sequence[NeededFile]]:
        return {"old": (NeededFile(FILE.path, FILE.size, FILE.sha256),)}

    async def replicas(self) -> Any:
        return rows()

    async def standings(self) -> Sequence[Standing]:
        standing = a_view("attic").standing
        boot = standing.node.boot_id or BootId("boot")
        report = Report(
            boot_id=boot,
            sequence=1,
            model_files=(FILE,),
            drops_files=True,
            fetched_bytes=3 * MB,
            model_files_budget="4MiB",
        )
        stored = StoredReport(boot, 1, encode(report).decode())
        return [replace(standing, node=replace(standing.node, report=stored))]

    async def drop_files(self, node: NodeId, request: FilesDrop) -> FilesDropReply:
        self.asked.append(request)
        gone = tuple(file.path for file in request.files)
        return FilesDropReply(removed=gone, freed=0, fetched_bytes=self.fetched_bytes)

    def room(self) -> FileRoom:
        return FileRoom(FileRoomDeps(self, self, self, self.standings, checks_disk=False))  # type: ignore[arg-type]


async def test_what_is_gone_already_counts_as_room_once_its_worker_says_what_is_left() -> None:
    fleet = Fleet(fetched_bytes=0)
    made = await fleet.room().make(NodeId("id-attic"), 3 * MB, "new")
    assert [file.path for file in made.files] == ["old.gguf"]
    assert len(fleet.asked) == 1


async def test_worker_that_does_not_say_what_is_left_has_what_it_reported() -> None:
    with pytest.raises(NoRoomForFiles, match="3 MiB of the 4 MiB"):
        await Fleet(fetched_bytes=None).room().make(NodeId("id-attic"), 3 * MB, "new")


class Restarted(Fleet):
    """The worker is killed over the first request, and started again."""

    async def standings(self) -> Sequence[Standing]:
        [standing] = await super().standings()
        boot = BootId(f"boot-{min(len(self.asked), 1)}")
        return [replace(standing, node=replace(standing.node, boot_id=boot))]

    async def drop_files(self, node: NodeId, request: FilesDrop) -> FilesDropReply:
        reply = await super().drop_files(node, request)
        if len(self.asked) == 1:
            await anyio.sleep_forever()
        return reply


async def test_worker_that_was_restarted_is_asked_again() -> None:
    fleet = Restarted(fetched_bytes=0)
    reply = await fleet.room()._answer(NodeId("id-attic"), FilesDrop(files=()))
    assert reply.fetched_bytes == 0
    assert len(fleet.asked) == 2


async def test_worker_that_refuses_is_asked_once() -> None:
    class Refusing(Fleet):
        async def drop_files(self, node: NodeId, request: FilesDrop) -> FilesDropReply:
            await super().drop_files(node, request)
            raise NodeUnreachable("nobody listens")

    fleet = Refusing(fetched_bytes=0)
    with pytest.raises(NodeUnreachable):
        await fleet.room().make(NodeId("id-attic"), 3 * MB, "new")
    assert len(fleet.asked) == 1


class WithParts(Fleet):
    """Two files have come in part; a fetch has the second one open."""

    async def standings(self) -> Sequence[Standing]:
        [standing] = await super().standings()
        boot = standing.node.boot_id or BootId("boot")
        parts = (ArrivedFile(sha256="aa", size=2 * MB), ArrivedFile(sha256="bb", size=MB))
        report = Report(boot_id=boot, drops_files=True, drops_parts=True, model_files_partial=parts)
        stored = StoredReport(boot, 1, encode(report).decode())
        return [replace(standing, node=replace(standing.node, report=stored))]

    async def drop_files(self, node: NodeId, request: FilesDrop) -> FilesDropReply:
        self.asked.append(request)
        return FilesDropReply(parts=("aa",), freed=2 * MB)


async def test_half_fetched_files_are_freed_and_what_stays_is_named() -> None:
    fleet = WithParts(fetched_bytes=0)
    planned = await fleet.room().free(NodeId("id-attic"), None, dry_run=True)
    assert isinstance(planned.plan, DropPlan)
    assert [part.sha256 for part in planned.plan.parts] == ["aa", "bb"]
    assert not fleet.asked

    freeing = await fleet.room().free(NodeId("id-attic"), None)

    assert [request.parts for request in fleet.asked] == [("aa", "bb")]
    assert freeing.done is not None
    assert (freeing.done.size_bytes, freeing.done.kept) == (
        2 * MB,
        (("(not placed) bb", "a load has it open"),),
    )
