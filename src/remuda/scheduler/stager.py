"""Has the files of a model on the node that is to load it: its worker fetches what it lacks by itself, by
addresses that are signed here and soon expire: from another node, from object storage, from a frontend, or
from where the model was installed from, if anyone may read it there. No credential ever leaves the frontend.
To a LocalAI worker, which does not fetch, they are pushed.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import anyio
import structlog

from remuda.core.clock import Clock
from remuda.core.errors import NoAnswerYet, NodeUnreachable, NotFound, PeerFailed, RemudaError
from remuda.core.ids import MachineId, NodeId
from remuda.core.tasks import side_by_side
from remuda.fleet.health import Standing
from remuda.fleet.identity import NodeTokens
from remuda.fleet.model import Node
from remuda.fleet.node_views import ObservedNodes
from remuda.fleet.verdicts import ObservedNode, is_localai
from remuda.models.file_hashes import FileHashes
from remuda.models.files import NeededFile
from remuda.ops.model import OpId, Step
from remuda.scheduler.catalogue import Catalogued, ModelCatalogue
from remuda.scheduler.file_holders import STORAGE, FileHolders
from remuda.scheduler.file_push import FilesPush
from remuda.scheduler.file_room import FileRoom
from remuda.scheduler.model import Replica, ReplicaState
from remuda.scheduler.ports import FileCommands, FilePush, HashingProgress, ReplicaRows
from remuda.scheduler.staging import (
    A_FRONTEND,
    Arrivals,
    Began,
    arrivals_elsewhere,
    arrived,
    began_of,
    files_on,
    givers,
    origin_name,
    pushable,
    to_check,
    to_send,
)
from remuda.scheduler.staging_broadcasts import StagingBroadcasts
from remuda.scheduler.worker_calls import Installing
from remuda.wire.backends import InstallProgress
from remuda.wire.files import FilePhase, FilesFetch, FilesFetchReply, WantedFile
from remuda.wire.model_file_urls import FRONTEND_PATH, WORKER_PATH, FileGrant, coming_within, signed_path
from remuda.wire.nodes import Report

log = structlog.get_logger(__name__)

_VALID: Final = timedelta(minutes=15)  # Of an address, to begin with; what has begun goes on.
HASHED_AT_ONCE_MAX: Final = 2
READ_ASKED_MAX: Final = 12  # Of a node that reads a file: even a disk of 5 MB/s is done by then.
BACK_WITHIN_S: Final = 60.0  # A worker that vanishes while files are copied to it, or from it.
_ASKED_AGAIN_S: Final = 2.0
_FILES_AT_ONCE: Final = 500  # In one request: a message has its bounds.
_COMING_S: Final = 8  # For the first byte at a node that is about to fetch the file itself.
_FRONTENDS_MAX: Final = 3
_JUST_NOW: Final[Began] = (datetime.max.replace(tzinfo=UTC), OpId(""))  # After all whose rows are known.


class Absence:
    """Of a worker that did not answer: one that was killed is started anew in seconds."""

    def __init__(self) -> None:
        self.times = 0  # It was waited for.
        self._until_s = 0.0

    async def waited(self) -> bool:
        """For a moment; False once that has been long enough."""
        now_s = anyio.current_time()
        self._until_s = self._until_s or now_s + BACK_WITHIN_S
        if now_s >= self._until_s:
            return False
        self.times += 1
        await anyio.sleep(_ASKED_AGAIN_S)
        return True


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
    replicas: ReplicaRows
    tokens: NodeTokens
    clock: Clock
    holders: FileHolders
    here: Collection[MachineId] = frozenset()
    push: FilePush | None = None  # To workers that do not fetch for themselves.
    shared: bool = False  # All nodes have this frontend's folder of models.
    room: FileRoom | None = None  # None: no room is made.
    told: StagingBroadcasts | None = None  # Other frontends, of how far it is.


@dataclass(frozen=True, slots=True)
class Staged:
    """`folder` is the folder of models on a node that files were pushed to; empty: its worker tells by
    itself. `taken` is how many bytes came from whom, in words, `before` how many had come before that."""

    folder: str = ""
    taken: Mapping[str, int] = field(default_factory=dict)
    before: int = 0


async def with_hashes(
    files: Sequence[NeededFile], sha256: Callable[[NeededFile], Awaitable[str]]
) -> list[NeededFile]:
    """The first failure ends the others. More of them at once would only have a disk seek."""
    found = list(files)
    slots = anyio.CapacityLimiter(HASHED_AT_ONCE_MAX)

    async def look(place: int) -> None:
        async with slots:
            found[place] = replace(found[place], sha256=await sha256(found[place]))

    await side_by_side(len(found), look)
    return found


async def read_at_node(
    file: NeededFile, giving: Callable[[], Awaitable[Sequence[Node]]], push: FilePush
) -> str:
    """A node that is still up is asked again: it goes on reading meanwhile, however slow its disk is. When it
    is not, the next one that has the file reads it; if there is none, one that was there is waited for."""
    asked, absence = 0, Absence()
    failure: StagingFailed | None = None
    while asked < READ_ASKED_MAX:
        nodes = await giving()
        if nodes:
            node = nodes[absence.times % len(nodes)]
            try:
                return await push.sha256(node, file.path, file.size)
            except NoAnswerYet as error:
                failure = StagingFailed(error.message, hint=error.hint)
                asked, absence = asked + 1, Absence()
                log.info("file_still_read", file=file.path, node=node.name, asked=asked)
                continue
            except NodeUnreachable as error:
                failure = StagingFailed(error.message, hint=error.hint)
            except RemudaError as error:
                raise StagingFailed(error.message, hint=error.hint) from error
        if failure is None:
            raise _no_giver(file)
        if not await absence.waited():
            raise failure
    raise failure or _no_giver(file)


def _no_giver(file: NeededFile) -> StagingFailed:
    return StagingFailed(
        f"no node that has {file.path} can be reached now", hint="try again when one of them is back"
    )


class Stager:
    def __init__(self, deps: StagerDeps) -> None:
        self._deps = deps
        self._nodes = ObservedNodes()
        self._arrivals = Arrivals()

    async def stage(self, step: Step, model: Catalogued, asking: Installing) -> Staged:
        """StagingFailed with the worker's own words. Nothing is done where a node cannot fetch, or what it
        needs is not known: its backend finds the model by itself then, or says that it does not."""
        views = await self._views()
        view = views.get(step.node)
        if view is None:
            return Staged()
        files = await self._deps.holders.needed(model, list(views.values()))
        own = view.standing.node.machine_id in self._deps.here
        if not files or (own and all(file.here for file in files)):
            return Staged()
        told = self._deps.told
        with nullcontext() if told is None else told.of(step, model.config.id):
            if is_localai(view.standing.node):
                return await self._push(step, model, files, view.standing.node)
            if view.report is not None and view.report.fetches_files:
                return await self._have_fetched(step, model, files, view, asking)
        return Staged()

    async def _have_fetched(
        self,
        step: Step,
        model: Catalogued,
        files: Sequence[NeededFile],
        view: ObservedNode,
        asking: Installing,
    ) -> Staged:
        assert view.report is not None, "its report says that it fetches"
        found = files_on(files, view.report)
        # What seems to be there is verified, too: of another file with this name and size nothing else tells.
        # In a folder that all share it is the same file.
        wanted = to_check(files, found.lacking, shared=self._deps.shared)
        if found.differs:
            raise StagingFailed(f"{step.node_name}: {found.differs}")
        await self._make_room(step, model, found.lacking, view.report)
        taken: Counter[str] = Counter()
        for start in range(0, len(wanted), _FILES_AT_ONCE):
            taken += await self._bring(step, model, wanted[start : start + _FILES_AT_ONCE], view, asking)
        lacked = sum(file.size for file in to_send(found.lacking, view.report))
        return Staged(taken=taken, before=max(lacked - taken.total(), 0))

    async def _make_room(
        self, step: Step, model: Catalogued, lacking: Sequence[NeededFile], report: Report
    ) -> None:
        """Before the first byte."""
        lacking = to_send(lacking, report)
        if self._deps.room is None or not lacking:
            return
        size, absence = sum(file.size for file in lacking), Absence()
        while True:
            try:
                await self._deps.room.make(step.node, size, model.config.id, arrived(lacking, report))
                return
            except RemudaError as error:
                if not isinstance(error, NodeUnreachable) or not await absence.waited():
                    raise StagingFailed(error.message, hint=error.hint, reason=error.code) from error

    async def _push(self, step: Step, model: Catalogued, files: Sequence[NeededFile], node: Node) -> Staged:
        deps = self._deps
        if deps.push is None or not pushable(files, node):
            return Staged()
        push = FilesPush(
            deps.push,
            deps.catalogue.models_path,
            lambda file: self._sha256(step, file, node),
            partial(deps.progress.tell, step),
            deps.clock,
        )
        try:
            pushed = await push.all(step, model.config.id, files, node)
        except StagingFailed:
            raise
        except RemudaError as error:
            raise StagingFailed(error.message, hint=error.hint, reason=error.code) from error
        return Staged(pushed.folder, {A_FRONTEND: pushed.sent_bytes})

    async def _views(self) -> Mapping[NodeId, ObservedNode]:
        return self._nodes.of(await self._deps.standings(), ())

    async def _bring(
        self,
        step: Step,
        model: Catalogued,
        files: Sequence[NeededFile],
        view: ObservedNode,
        asking: Installing,
    ) -> Counter[str]:
        """How many bytes came from whom. Asked again, with fresh addresses, for as long as that brings more
        of them."""
        hashed = await with_hashes(files, lambda file: self._sha256(step, file, view.standing.node))
        began = next((began_of(row) for row in await self._rows() if row.op == step.op), None)
        with self._arrivals.of({file.sha256 for file in hashed}, step.node, began or _JUST_NOW):
            while True:
                before = self._deps.progress.moved(step)
                request = await self._request(step, model, hashed, view)
                reply = await self._answer(step, request, view, asking)
                if reply.success:
                    return Counter({one.source: one.size for one in reply.taken})
                reason = await self._with_names(reply.error)
                if self._deps.progress.moved(step) == before or reply.code not in _AGAIN:
                    raise StagingFailed(
                        f"the files of {model.config.id} could not be copied to {step.node_name}: {reason}",
                        reason=reply.code,
                    )
                log.info("staging_asked_again", op=step.op, node=step.node_name, reason=reason)

    async def _with_names(self, error: str) -> str:
        """A worker knows the others by their addresses only."""
        for view in (await self._views()).values():
            node = view.standing.node
            if node.http_address:
                address = f"http://{node.http_address}"
                error = error.replace(f"{address} ", f"{node.name} at {address} ")
        return error

    async def _answer(
        self, step: Step, request: FilesFetch, view: ObservedNode, asking: Installing
    ) -> FilesFetchReply:
        send = partial(self._deps.worker.fetch_files, step.node, request)
        absence = Absence()
        while True:
            asked_s = anyio.current_time()
            try:
                return await asking.until_answered(send, view.standing)
            except NodeUnreachable as error:
                if anyio.current_time() > asked_s + BACK_WITHIN_S:  # It was at work until now.
                    absence = Absence()
                if not await absence.waited():
                    raise StagingFailed(
                        f"the files of {request.model} could not be copied to {step.node_name}: "
                        f"{error.message}",
                        hint=error.hint,
                    ) from error

    async def _sha256(self, step: Step, file: NeededFile, receiver: Node) -> str:
        """Computing one counts as progress."""
        if file.sha256:
            return file.sha256
        if not file.here:
            return await self._sha256_at_node(step, file, receiver)

        def on_bytes(done: int) -> None:
            self._deps.progress.tell(step, self._hashing(step, file, done))

        on_bytes(0)
        path = self._deps.catalogue.models_path / file.path
        try:
            return await self._deps.hashes.of(path, on_bytes)
        except RemudaError as error:
            raise StagingFailed(error.message, hint=error.hint) from error

    async def _sha256_at_node(self, step: Step, file: NeededFile, receiver: Node) -> str:
        """Of a file that only nodes have: one of them reads it, and remembers what it has read."""
        self._deps.progress.tell(step, self._hashing(step, file, 0))

        async def giving() -> Sequence[Node]:
            return [one.node for one in givers(file, list((await self._views()).values()), receiver)]

        if self._deps.push is None:
            raise _no_giver(file)
        return await read_at_node(file, giving, self._deps.push)

    def _hashing(self, step: Step, file: NeededFile, done_bytes: int) -> InstallProgress:
        return InstallProgress(
            op_id=step.op,
            file_name=f"Hashing {file.path}",
            phase=FilePhase.HASHING,
            seq=int(self._deps.clock.now().timestamp() * 1000),
            current_bytes=done_bytes,
            total_bytes=file.size,
        )

    async def _request(
        self, step: Step, model: Catalogued, files: Sequence[NeededFile], view: ObservedNode
    ) -> FilesFetch:
        nodes = list((await self._views()).values())
        here = {file.path for file in await self._deps.catalogue.files(model) if file.here}
        coming = await self._coming(step)
        signed: list[WantedFile] = []
        for file in files:
            known = replace(file, here=file.path in here)
            sources = await self._sources(model.config.id, known, nodes, view, coming)
            signed.append(
                WantedFile(
                    path=file.path,
                    size=file.size,
                    sha256=file.sha256,
                    sources=tuple(url for url, _ in sources),
                    source_names=tuple(name for _, name in sources),
                )
            )
        return FilesFetch(model=model.config.id, op_id=step.op, attempt=step.attempt, files=tuple(signed))

    async def _rows(self) -> Sequence[Replica]:
        """None where the store cannot be read: staging goes on without their order."""
        try:
            return (await self._deps.replicas.replicas()).rows
        except RemudaError as error:
            log.info("loads_of_other_frontends_not_known", reason=error.message)
            return ()

    async def _coming(self, step: Step) -> "_Coming":
        """What loads under way have on its way to other nodes, whichever frontend carries them out."""
        rows = [
            row
            for row in await self._rows()
            if row.state is ReplicaState.STAGING and row.op != step.op and row.node != step.node
        ]
        files: dict[str, Sequence[NeededFile]] = {}
        for name in {row.key.model for row in rows}:
            if (known := self._deps.catalogue.find(name)) is not None:
                files[name] = await self._deps.catalogue.files(known)
        return _Coming(rows, files)

    async def _sources(
        self,
        model: str,
        file: NeededFile,
        nodes: Sequence[ObservedNode],
        view: ObservedNode,
        coming: "_Coming",
    ) -> list[tuple[str, str]]:
        """Addresses with what people call them. Other nodes first: they spare the frontends. The origin last:
        it may ask for a credential."""
        receiver = view.standing.node
        expires = int((self._deps.clock.now() + _VALID).timestamp())
        grant = FileGrant(file.path, file.size, file.sha256, receiver.id, expires)
        stored = await self._deps.holders.stored_at(model, file)
        found = self._at_nodes(grant, file, nodes, receiver, coming)
        found += [(stored, STORAGE)] if stored else []
        at_frontends = signed_path(FRONTEND_PATH, self._deps.tokens.model_files, grant)
        others = [f"{url}{at_frontends}" for url in self._deps.holders.frontends(file)[:_FRONTENDS_MAX]]
        if file.here or others:  # Where the worker has registered, the file may be as well.
            found.append((at_frontends, A_FRONTEND))
        found += [(url, A_FRONTEND) for url in others]
        return [*found, *([(file.origin, origin_name(file.origin))] if file.origin else [])]

    def _at_nodes(
        self,
        grant: FileGrant,
        file: NeededFile,
        nodes: Sequence[ObservedNode],
        receiver: Node,
        under_way: "_Coming",
    ) -> list[tuple[str, str]]:
        arrivals, tokens, sha256 = self._arrivals, self._deps.tokens, file.sha256
        arrivals.takes(sha256, receiver.id, None)
        elsewhere = arrivals_elsewhere(file, under_way.rows, under_way.files_of)
        coming = arrivals.before(sha256, receiver.id, elsewhere)
        found = [
            (one, token)
            for one in givers(file, nodes, receiver, coming, arrivals.takers(sha256))
            if (token := tokens.of(one.node).http)
        ]
        if found:
            arrivals.takes(sha256, receiver.id, found[0][0].node.id)
        places: list[tuple[str, str]] = []
        for one, token in found:
            url = f"http://{one.node.http_address}{signed_path(WORKER_PATH, token, grant)}"
            places.append((url if one.whole else coming_within(url, _COMING_S), one.node.name))
        return places


@dataclass(frozen=True, slots=True)
class _Coming:
    rows: Sequence[Replica]
    files_of: Mapping[str, Sequence[NeededFile]]


_AGAIN: Final = frozenset({"forbidden", "registry_failed", NotFound.code})
"""Of failures that may come of addresses that have expired, or of sources that are gone for the moment."""
