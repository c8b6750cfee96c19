"""Has the files of a model on the node that is to load it: its worker fetches what it lacks by itself, from
another node, or from this frontend, by addresses that are signed here and soon expire. No credential of a hub
ever leaves the frontend. To a LocalAI worker, which does not fetch, they are pushed.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

import structlog

from remuda.core.clock import Clock
from remuda.core.errors import NodeUnreachable, NotFound, PeerFailed, RemudaError
from remuda.core.ids import MachineId, NodeId
from remuda.fleet.health import Standing
from remuda.fleet.identity import NodeTokens
from remuda.fleet.model import Node
from remuda.fleet.node_views import ObservedNodes
from remuda.fleet.verdicts import ObservedNode, is_localai
from remuda.models.file_hashes import FileHashes
from remuda.models.files import NeededFile
from remuda.ops.model import Step
from remuda.scheduler.catalogue import Catalogued, ModelCatalogue
from remuda.scheduler.ports import FileCommands, FilePush, HashingProgress
from remuda.scheduler.staging import files_on, givers, pushable
from remuda.scheduler.worker_calls import Installing
from remuda.wire.backends import InstallProgress
from remuda.wire.files import FilePhase, FilesFetch, FilesFetchReply, WantedFile
from remuda.wire.model_file_urls import FRONTEND_PATH, WORKER_PATH, FileGrant, signed_path

log = structlog.get_logger(__name__)

_VALID: Final = timedelta(minutes=15)  # Of an address, to begin with; what has begun goes on.
_SHARE: Final = 90.0  # Of a load's way until its backend is looked at, as workers tell it.
_FILES_AT_ONCE: Final = 500  # In one request: a message has its bounds.


class StagingFailed(PeerFailed):
    """A model's files could not be brought to the node."""

    code = "staging_failed"


@dataclass(frozen=True, slots=True)
class StagerDeps:
    """`here` are the workers of this machine, whose folder of models is ours."""

    worker: FileCommands
    catalogue: ModelCatalogue
    hashes: FileHashes
    standings: Callable[[], Awaitable[Sequence[Standing]]]
    progress: HashingProgress
    tokens: NodeTokens
    clock: Clock
    here: Collection[MachineId] = frozenset()
    push: FilePush | None = None  # To workers that do not fetch for themselves.
    shared: bool = False  # All nodes have this frontend's folder of models.


class Stager:
    def __init__(self, deps: StagerDeps) -> None:
        self._deps = deps
        self._nodes = ObservedNodes()

    async def stage(self, step: Step, model: Catalogued, asking: Installing) -> str:
        """The folder of models on a node that files were pushed to; empty: its worker tells by itself.

        StagingFailed with the worker's own words. Nothing is done where a node cannot fetch, or what it
        needs is not known: its backend finds the model by itself then, or says that it does not."""
        view = (await self._views()).get(step.node)
        if view is None or view.standing.node.machine_id in self._deps.here:
            return ""
        files = await self._deps.catalogue.files(model)
        if is_localai(view.standing.node):
            return await self._push(step, model, files, view.standing.node)
        if view.report is not None and view.report.fetches_files:
            await self._have_fetched(step, model, files, view, asking)
        return ""

    async def _have_fetched(
        self,
        step: Step,
        model: Catalogued,
        files: Sequence[NeededFile],
        view: ObservedNode,
        asking: Installing,
    ) -> None:
        assert view.report is not None, "its report says that it fetches"
        found = files_on(files, view.report)
        # What seems to be there is verified, too: of another file with this name and size nothing else tells.
        # In a folder that all share it is the same file.
        wanted = [file for file in files if file.sha256 or not self._deps.shared or file in found.lacking]
        if found.differs:
            raise StagingFailed(f"{step.node_name}: {found.differs}")
        for start in range(0, len(wanted), _FILES_AT_ONCE):
            await self._bring(step, model, wanted[start : start + _FILES_AT_ONCE], view, asking)

    async def _push(self, step: Step, model: Catalogued, files: Sequence[NeededFile], node: Node) -> str:
        """Below the model's own name, as the contract has it: its files are removed with one folder."""
        push = self._deps.push
        if push is None or not pushable(files, node):
            return ""
        folder, total, before = "", sum(file.size for file in files), 0
        for number, file in enumerate(files, start=1):
            wanted = await self._hashed(step, file)
            name = f"Copying {number}/{len(files)} {file.path}"
            tell = partial(self._tell_pushed, step, name, before, total)
            local = self._deps.catalogue.models_path / file.path
            try:
                remote = await push.push(node, model.config.id, local, wanted, tell)
            except RemudaError as error:
                raise StagingFailed(error.message, hint=error.hint, reason=error.code) from error
            if not remote.endswith(f"/{file.path}"):
                raise StagingFailed(f"{step.node_name} has put {file.path} elsewhere: {remote}")
            folder, before = remote.removesuffix(f"/{file.path}"), before + file.size
        return folder

    def _tell_pushed(self, step: Step, name: str, before: int, total: int, done: int) -> None:
        event = InstallProgress(
            op_id=step.op,
            file_name=name,
            phase=FilePhase.STAGING,
            seq=int(self._deps.clock.now().timestamp() * 1000),
            current_bytes=before + done,
            total_bytes=total,
            overall=_SHARE * (before + done) / total if total else 0.0,
        )
        self._deps.progress.tell(step, event)

    async def _views(self) -> Mapping[NodeId, ObservedNode]:
        return self._nodes.of(await self._deps.standings(), ())

    async def _bring(
        self,
        step: Step,
        model: Catalogued,
        files: Sequence[NeededFile],
        view: ObservedNode,
        asking: Installing,
    ) -> None:
        """Asked again, with fresh addresses, for as long as that brings more of them."""
        hashed = [await self._hashed(step, file) for file in files]
        while True:
            before = self._deps.progress.moved(step)
            request = await self._request(step, model, hashed, view)
            reply = await self._answer(step, request, view, asking)
            if reply.success:
                return
            if self._deps.progress.moved(step) == before or reply.code not in _AGAIN:
                raise StagingFailed(
                    f"the files of {model.config.id} could not be copied to {step.node_name}: {reply.error}",
                    reason=reply.code,
                )
            log.info("staging_asked_again", op=step.op, node=step.node_name, reason=reply.error)

    async def _answer(
        self, step: Step, request: FilesFetch, view: ObservedNode, asking: Installing
    ) -> FilesFetchReply:
        send = partial(self._deps.worker.fetch_files, step.node, request)
        try:
            return await asking.until_answered(send, view.standing)
        except NodeUnreachable as error:
            raise StagingFailed(
                f"the files of {request.model} could not be copied to {step.node_name}: {error.message}",
                hint=error.hint,
            ) from error

    async def _hashed(self, step: Step, file: NeededFile) -> WantedFile:
        """Computing one counts as progress."""
        if file.sha256:
            return WantedFile(path=file.path, size=file.size, sha256=file.sha256)

        def on_bytes(done: int) -> None:
            self._deps.progress.tell(step, _hashing(step, file, done))

        on_bytes(0)
        path = self._deps.catalogue.models_path / file.path
        try:
            sha256 = await self._deps.hashes.of(path, on_bytes)
        except RemudaError as error:
            raise StagingFailed(error.message, hint=error.hint) from error
        return WantedFile(path=file.path, size=file.size, sha256=sha256)

    async def _request(
        self, step: Step, model: Catalogued, files: Sequence[WantedFile], view: ObservedNode
    ) -> FilesFetch:
        nodes = list((await self._views()).values())
        here = {file.path for file in await self._deps.catalogue.files(model) if file.here}
        receiver = view.standing.node
        signed = [
            file.model_copy(update={"sources": self._sources(file, nodes, receiver, file.path in here)})
            for file in files
        ]
        return FilesFetch(model=model.config.id, op_id=step.op, attempt=step.attempt, files=tuple(signed))

    def _sources(
        self, file: WantedFile, nodes: Sequence[ObservedNode], receiver: Node, here: bool
    ) -> tuple[str, ...]:
        """Other nodes first: they spare the frontend."""
        expires = int((self._deps.clock.now() + _VALID).timestamp())
        grant = FileGrant(file.path, file.size, file.sha256, receiver.id, expires)
        having = givers(NeededFile(file.path, file.size), nodes, receiver)
        tokens = self._deps.tokens
        urls = [
            f"http://{node.http_address}{signed_path(WORKER_PATH, token, grant)}"
            for node in having
            if (token := tokens.of(node).http)
        ]
        if here:
            urls.append(signed_path(FRONTEND_PATH, tokens.model_files, grant))
        return tuple(urls)


_AGAIN: Final = frozenset({"forbidden", "registry_failed", NotFound.code})
"""Of failures that may come of addresses that have expired, or of sources that are gone for the moment."""


def _hashing(step: Step, file: NeededFile, done_bytes: int) -> InstallProgress:
    return InstallProgress(
        op_id=step.op,
        file_name=f"Hashing {file.path}",
        phase=FilePhase.HASHING,
        seq=done_bytes + 1,
        current_bytes=done_bytes,
        total_bytes=file.size,
    )
