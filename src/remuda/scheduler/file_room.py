"""Makes room for model files on a node: asks what may go there, has its worker remove it, and counts the room
as free only once the worker has said so.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import anyio
import structlog

from remuda.core.errors import Conflict, NotFound, PeerFailed, RemudaError
from remuda.core.ids import BootId, NodeId
from remuda.fleet.health import Standing
from remuda.fleet.node_views import ObservedNodes
from remuda.fleet.verdicts import ObservedNode, is_localai, is_up
from remuda.models.files import NeededFile
from remuda.scheduler.catalogue import ModelCatalogue
from remuda.scheduler.disk_room import (
    DropPlan,
    FileCopy,
    FileOnNode,
    FilesInFleet,
    NodeDisk,
    NoRoom,
    PartOnNode,
    disk_of,
    files_in_fleet,
    freed_by_hand,
    over_budget_bytes,
    room_for,
)
from remuda.scheduler.file_holders import ModelsFile
from remuda.scheduler.model import Replica
from remuda.scheduler.ports import FileCommands, ReplicaStore
from remuda.wire.files import FilesDrop, FilesDropReply, UnusedFile

log = structlog.get_logger(__name__)

_ROUNDS_MAX: Final = 3  # What a worker keeps after all may be made up for by others.
_FILES_AT_ONCE: Final = 500  # In one request: a message has its bounds.
_LOOK_S: Final = 2.0
_IN_USE: Final = "a load has it open"


class NoRoomForFiles(Conflict):
    """A node's disk or budget has no room for a model's files, whatever may go."""

    code = "no_room_for_files"


@dataclass(frozen=True, slots=True)
class FileRoomDeps:
    worker: FileCommands
    catalogue: ModelCatalogue
    store: ReplicaStore
    standings: Callable[[], Awaitable[Sequence[Standing]]]
    checks_disk: bool = True
    copies: Callable[[Sequence[ModelsFile]], Awaitable[Collection[FileCopy]]] | None = None
    """Which of these other frontends or object storage have; see FileHolders. None: there are none."""


@dataclass(frozen=True, slots=True)
class Freed:
    """What a worker has removed, and what it kept after all, with its reasons."""

    files: tuple[FileOnNode, ...] = ()
    parts: tuple[PartOnNode, ...] = ()
    size_bytes: int = 0
    kept: tuple[tuple[str, str], ...] = ()


class FileRoom:
    def __init__(self, deps: FileRoomDeps) -> None:
        self._deps = deps
        self._nodes = ObservedNodes()

    async def known(self, nodes: Sequence[ObservedNode], rows: Sequence[Replica]) -> FilesInFleet:
        """For decisions about these nodes, with these replicas on them."""
        deps = self._deps
        models = await deps.catalogue.files_of_all()
        pinned = [one.config.id for one in deps.catalogue.configured.values() if one.config.pinned]
        return files_in_fleet(
            models,
            nodes,
            rows,
            pinned=pinned,
            checks_disk=deps.checks_disk,
            elsewhere=await self._elsewhere(models, nodes),
        )

    async def _elsewhere(
        self, models: Mapping[str, Sequence[NeededFile]], nodes: Sequence[ObservedNode]
    ) -> Collection[FileCopy]:
        """Asked only of what nodes have fetched and this frontend has not."""
        fetched = {
            (one.path, one.size, one.sha256)
            for view in nodes
            for one in (view.report.model_files if view.report else ())
            if one.brought and one.sha256
        }
        wanted = [
            ModelsFile(name, file)
            for name, files in models.items()
            for file in files
            if not file.here and (file.path, file.size, file.sha256) in fetched
        ]
        return await self._deps.copies(wanted) if self._deps.copies and wanted else ()

    async def disk(self, node: NodeId, loading: str = "") -> NodeDisk:
        """NotFound for a node that is not there; Conflict for one of which nothing is known."""
        views = self._nodes.of(await self._deps.standings(), ())
        view = views.get(node)
        if view is None:
            raise NotFound(f"there is no node with the id {node}", hint="remuda nodes lists those there are")
        if is_localai(view.standing.node):
            raise Conflict(
                f"{view.standing.node.name} runs LocalAI's worker, which does not report its files",
                hint="look at its models folder on that machine",
            )
        rows = (await self._deps.store.replicas()).rows
        return disk_of(view, await self.known(list(views.values()), rows), loading)

    async def make(self, node: NodeId, needed_bytes: int, loading: str, arrived_bytes: int = 0) -> Freed:
        """Have room for files of this size, of which so much is there already. NoRoomForFiles before anything
        goes, if it cannot be had."""
        disk = await self.disk(node, loading)
        return await self._make(node, disk, lambda now: room_for(needed_bytes, now, arrived_bytes))

    async def free(self, node: NodeId, wanted_bytes: int | None, *, dry_run: bool = False) -> "Freeing":
        """Free so many bytes; None: what is over the node's budget. Beside them goes what no load is copying.
        With `dry_run` nothing goes."""
        disk = await self.disk(node)
        of_budget = wanted_bytes is None
        lacking = over_budget_bytes(disk) if wanted_bytes is None else wanted_bytes
        plan = freed_by_hand(lacking, disk, of_budget=of_budget)
        if dry_run or isinstance(plan, NoRoom):
            return Freeing(disk, plan)
        views = self._nodes.of(await self._deps.standings(), ())
        if (plan.drop or plan.parts) and not is_up(views[node].standing):
            raise Conflict(f"{disk.node} cannot be reached now", hint="try again when it is back")

        def decide(now: NodeDisk) -> DropPlan | NoRoom:
            gone = disk.fetched_bytes - now.fetched_bytes
            if not of_budget:
                gone += sum(one.size for one in disk.parts) - sum(one.size for one in now.parts)
            return freed_by_hand(max(lacking - gone, 0), now, of_budget=of_budget)

        return Freeing(disk, plan, await self._make(node, disk, decide))

    async def _make(
        self, node: NodeId, disk: NodeDisk, decide: Callable[[NodeDisk], DropPlan | NoRoom]
    ) -> Freed:
        done = Freed()
        for _ in range(_ROUNDS_MAX):
            plan = decide(disk)
            if isinstance(plan, NoRoom):
                raise NoRoomForFiles(f"{disk.node}: {plan.why}")
            if not plan.drop and not plan.parts:
                return done
            if parts := plan.parts[:_FILES_AT_ONCE]:
                reply = await self._drop(node, disk, (), parts)
                done, disk = _confirmed(done, disk, reply, parts)
            for start in range(0, len(plan.files), _FILES_AT_ONCE):
                reply = await self._drop(node, disk, plan.files[start : start + _FILES_AT_ONCE])
                done, disk = _confirmed(done, disk, reply)
        raise NoRoomForFiles(
            f"{disk.node} kept files that were to make room: "
            + ", ".join(f"{path} ({why})" for path, why in done.kept),
            hint="try again",
        )

    async def _drop(
        self,
        node: NodeId,
        disk: NodeDisk,
        files: Sequence[FileOnNode],
        parts: Sequence[PartOnNode] = (),
    ) -> FilesDropReply:
        unused = tuple(UnusedFile(path=one.path, sha256=one.sha256, used_ms=one.used_ms) for one in files)
        request = FilesDrop(files=unused, parts=tuple(one.sha256 for one in parts))
        reply = await self._answer(node, request)
        if reply.error:
            raise PeerFailed(f"{disk.node} could not make room: {reply.error}", reason=reply.code)
        log.info(
            "model_files_dropped",
            node=disk.node,
            files=list(reply.removed),
            parts=list(reply.parts),
            freed=reply.freed,
            kept={one.path: one.why for one in reply.kept},
        )
        return reply

    async def _answer(self, node: NodeId, request: FilesDrop) -> FilesDropReply:
        """Of a worker that is started anew meanwhile there will be none, and it is asked again: what has gone
        by then is gone."""
        while True:
            reply: FilesDropReply | RemudaError | None = None
            boot = await self._boot(node)

            async def watch(scope: anyio.CancelScope, boot: BootId | None = boot) -> None:
                while True:
                    await anyio.sleep(_LOOK_S)
                    if await self._boot(node) not in (None, boot):
                        scope.cancel()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch, tasks.cancel_scope)
                try:
                    reply = await self._deps.worker.drop_files(node, request)
                except RemudaError as error:
                    reply = error
                tasks.cancel_scope.cancel()
            if isinstance(reply, RemudaError):
                raise reply
            if reply is not None:
                return reply
            log.info("files_drop_asked_again", node=node)

    async def _boot(self, node: NodeId) -> BootId | None:
        """None: it is not known now."""
        try:
            standings = await self._deps.standings()
        except RemudaError:
            return None
        return next((one.node.boot_id for one in standings if one.node.id == node), None)


@dataclass(frozen=True, slots=True)
class Freeing:
    """A node's disk as it was, what was decided, and what became of it; None: nothing was done."""

    disk: NodeDisk
    plan: DropPlan | NoRoom
    done: Freed | None = None


def _confirmed(
    done: Freed, disk: NodeDisk, reply: FilesDropReply, asked: Sequence[PartOnNode] = ()
) -> tuple[Freed, NodeDisk]:
    """What the worker has said counts, and nothing else. Of the parts it was asked for, others stay."""
    removed, kept = set(reply.removed), {one.path: one.why for one in reply.kept}
    stays = {one.sha256 for one in asked} - set(reply.parts)
    kept |= {unplaced_name(one.sha256): _IN_USE for one in asked if one.sha256 in stays}
    parts = tuple(
        replace(one, keep=_IN_USE if one.sha256 in stays else one.keep)
        for one in disk.parts
        if one.sha256 not in reply.parts
    )
    went = tuple(one for one in disk.parts if one.sha256 in reply.parts)
    gone = tuple(file for file in disk.files if file.path in removed)
    files = tuple(
        replace(file, keep=kept.get(file.path, file.keep)) for file in disk.files if file.path not in removed
    )
    free = disk.free_bytes
    if free is not None:
        free = free + reply.freed if reply.available_disk is None else reply.available_disk
    # Its report may be from before an earlier request of this kind, whose answer was lost.
    fetched = max(disk.fetched_bytes - reply.freed, 0) if reply.fetched_bytes is None else reply.fetched_bytes
    after = replace(disk, files=files, parts=parts, free_bytes=free, fetched_bytes=fetched)
    size_bytes, all_kept = done.size_bytes + reply.freed, (*done.kept, *kept.items())
    return Freed((*done.files, *gone), (*done.parts, *went), size_bytes, all_kept), after


def unplaced_name(sha256: str) -> str:
    """For people: there is no better one."""
    return f"(not placed) {sha256[:12]}"
