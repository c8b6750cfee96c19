"""Pages of backends: what galleries offer, which nodes can run it and which have it, and what is being done
to it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from remuda.core.errors import RemudaError
from remuda.core.ids import NodeId
from remuda.fleet.verdicts import ObservedNode, is_counted, is_localai, why_no_target
from remuda.gallery.fetch import shown
from remuda.gallery.model import Found, MachineProfile, Reading, everything, find, search
from remuda.ops.model import Kind, OpId, RollOut, Source, State
from remuda.ops.op_views import element, only_node
from remuda.ops.ports import View
from remuda.ops.selection import Holding, Selection, holdings
from remuda.ops.targets import PlanningContext, WantedOperation, builds_of, machine_of, plan
from remuda.wire.backends import InstalledBackend
from remuda.wire.nodes import InstalledArtifact
from remuda.wire.operations import BackendItem, BackendsPage, InstalledItem, NodeHolding, Repository

_NOT_STORED = OpId("not-stored")


def fits(nodes: Sequence[ObservedNode], readings: Sequence[Reading]) -> dict[str, list[str]]:
    """For each backend, as gallery@name, the names of the nodes that can run a build of it."""
    alike = defaultdict[tuple[MachineProfile, bool], list[ObservedNode]](list)
    for node in nodes:
        if not why_no_target(node.standing):
            known = node.standing.node
            alike[machine_of(known), is_localai(known)].append(node)
    groups = {same[0].standing.node.id: same for same in alike.values()}
    context = PlanningContext([same[0] for same in groups.values()], readings)
    names = (f"{found.gallery.name}@{found.entry.name}" for found in everything(readings))
    return {
        name: sorted(node.standing.node.name for one in _able(name, context) for node in groups[one])
        for name in names
    }


def _able(name: str, context: PlanningContext) -> list[NodeId]:
    ids = tuple(node.standing.node.id for node in context.nodes)
    wanted = WantedOperation(Kind.INSTALL, Source(name), Selection(names=ids), RollOut(1))
    try:
        drafts = plan(wanted, context, _NOT_STORED).drafts
    except RemudaError:  # None of them can.
        return []
    return [draft.step.node for draft in drafts if draft.step.state is not State.SKIPPED]


@dataclass(frozen=True, slots=True)
class BackendQuery:
    term: str = ""
    tag: str = ""
    page: int = 1
    items: int = 9
    sort: str = ""
    descending: bool = False


class BackendCatalogue:
    """Everything there is at one moment."""

    def __init__(
        self, readings: Sequence[Reading], nodes: Sequence[ObservedNode], at_work: Iterable[View]
    ) -> None:
        self._readings = readings
        self._held = holdings(nodes)
        capabilities = {node.standing.node.resources.capability for node in nodes if is_counted(node)}
        self._capabilities = ", ".join(sorted(capabilities - {""}))
        self._at_work = {_key(view): view for view in at_work}
        self._jobs = {element(view.operation): view for view in self._at_work.values()}

    def page(self, wanted: BackendQuery) -> BackendsPage:
        listed = tuple(everything(self._readings))
        tagged = [one for one in search(self._readings, wanted.term) if _has_tag(one, wanted.tag)]
        found = self._sorted(tagged, wanted)
        pages = max(1, ceil(len(found) / wanted.items))
        page = min(wanted.page, pages)
        return BackendsPage(
            backends=tuple(map(self._item, found[(page - 1) * wanted.items : page * wanted.items])),
            repositories=tuple(
                Repository(name=one.gallery.name, url=shown(one.gallery.url)) for one in self._readings
            ),
            allTags=tuple(sorted({tag for one in listed for tag in one.entry.tags})),
            processingBackends={key: view.operation.id for key, view in self._at_work.items()},
            taskTypes={key: _task_type(view) for key, view in self._at_work.items()},
            availableBackends=len(listed),
            installedBackends=len(self._held),
            currentPage=page,
            totalPages=pages,
            prevPage=max(1, page - 1),
            nextPage=min(pages, page + 1),
            systemCapability=self._capabilities,
        )

    def available(self) -> list[BackendItem]:
        return [self._item(one) for one in everything(self._readings)]

    def installed(self) -> list[InstalledItem]:
        """What nodes have, whether a gallery offers it or not."""
        return [self._installed(name, held) for name, held in self._held.items()]

    def _sorted(self, found: list[Found], wanted: BackendQuery) -> list[Found]:
        """In the galleries' order, unless another is asked for."""
        keys: dict[str, Callable[[Found], tuple[object, ...]]] = {
            "name": lambda one: (one.entry.name,),
            "repository": lambda one: (one.gallery.name, one.entry.name),
            "license": lambda one: (one.entry.license, one.entry.name),
            "status": lambda one: (not self._holders(one), one.entry.name),
        }
        key = keys.get(wanted.sort)
        return found if key is None else sorted(found, key=key, reverse=wanted.descending)

    def _installed(self, name: str, held: Sequence[Holding]) -> InstalledItem:
        offered, first = find(self._readings, name), held[0].artifact
        item = BackendItem(id=name, name=name) if offered is None else self._item(offered)
        on_nodes = {"installed": True, "version": first.version, "nodes": _node_holdings(held)}
        return InstalledItem(
            **dict(item.model_copy(update=on_nodes)),
            Name=name,
            IsMeta=first.is_meta,
            IsSystem=first.is_system,
            Metadata=installed_backend(first),
        )

    def _item(self, found: Found) -> BackendItem:
        entry, key = found.entry, f"{found.gallery.name}@{found.entry.name}"
        held = self._holders(found)
        job = self._jobs.get(key) or self._jobs.get(entry.name)
        builds = {one.artifact.name for one in held}
        return BackendItem(
            id=key,
            name=entry.name,
            description=entry.description,
            icon=entry.icon,
            license=entry.license,
            urls=entry.urls,
            tags=entry.tags,
            gallery=found.gallery.name,
            installed=bool(held),
            version=held[0].artifact.version if held else entry.version,
            processing=job is not None,
            jobID="" if job is None else job.operation.id,
            isDeletion=job is not None and job.operation.kind is Kind.REMOVE,
            isMeta=entry.meta,
            isAlias=entry.alias not in ("", entry.name),
            isDevelopment=entry.development,
            capabilities=dict(entry.capabilities),
            metaBackendFor=builds.pop() if entry.meta and len(builds) == 1 else "",
            nodes=_node_holdings(held) if held else None,
        )

    def _holders(self, found: Found) -> tuple[Holding, ...]:
        name = f"{found.gallery.name}@{found.entry.name}"
        names = builds_of(self._readings, name) if found.entry.meta else (found.entry.name,)
        return tuple(one for build in names for one in self._held.get(build, ()))


def installed_backend(artifact: InstalledArtifact) -> InstalledBackend:
    """In the words of the contract's lists."""
    return InstalledBackend(
        name=artifact.name,
        is_system=artifact.is_system,
        is_meta=artifact.is_meta,
        installed_at=artifact.installed_at,
        gallery_url=artifact.gallery_url,
        version=artifact.version,
        uri=artifact.uri,
        digest=artifact.digest,
    )


def _node_holdings(held: Iterable[Holding]) -> tuple[NodeHolding, ...]:
    return tuple(
        NodeHolding(
            node_id=one.standing.node.id,
            node_name=one.standing.node.name,
            node_status=one.standing.status,
            version=one.artifact.version,
            digest=one.artifact.digest,
            uri=one.artifact.uri,
            installed_at=one.artifact.installed_at,
            start_error=one.artifact.start_error,
        )
        for one in held
    )


def _key(view: View) -> str:
    node = only_node(view)
    return f"node:{node}:{element(view.operation)}" if node else element(view.operation)


def _task_type(view: View) -> str:
    return "Deletion" if view.operation.kind is Kind.REMOVE else "Installation"


def _has_tag(found: Found, tag: str) -> bool:
    return not tag or tag.lower() in map(str.lower, found.entry.tags)
