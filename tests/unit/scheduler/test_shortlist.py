"""The best node, found without looking closely at each: the same as by looking at all."""

from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.ids import NodeId
from remuda.core.slices import at_once, slice_count
from remuda.fleet.verdicts import ObservedNode
from remuda.models.files import NeededFile
from remuda.models.gguf import all_parts
from remuda.models.memory import MemoryUse
from remuda.scheduler import shortlist
from remuda.scheduler.backend_supply import Supply
from remuda.scheduler.eviction import Turn
from remuda.scheduler.facts import PlacementFacts, ReportPaths, is_among
from remuda.scheduler.measured_memory import MemoryBook, MemoryKey
from remuda.scheduler.measured_speed import MeasuredRate, Rate, RateBook, RateKey
from remuda.scheduler.model import Need, NodeOffer, Placed, Replica, ReplicaState, Unplaceable
from remuda.scheduler.offers import offers
from remuda.scheduler.placement import Fit, look, place
from remuda.scheduler.ranking import NodeWishes, usual_speed
from remuda.scheduler.refusals import RefusalBook
from remuda.scheduler.shortlist import Glance, SupplyFacts, best_place
from tests.support.examples import examples
from tests.unit.scheduler.offering import a_need
from tests.unit.scheduler.standing import GB, GPU, a_row, a_view, ago, rows

NAMES = ("n0", "n1", "n2", "n3")
MODELS = ("qwen", "a", "b", "c")
FILES = (NeededFile("qwen.gguf", 1, "", here=True), NeededFile("eye.gguf", 1, "", here=False))
gigabytes = st.integers(0, 12)


@st.composite
def views(draw: st.DrawFn, name: str) -> ObservedNode:
    vram = draw(st.sampled_from((0, 8, 24)))
    ram = draw(st.sampled_from((0, 16, 24)))
    figures = replace(
        GPU,
        total_vram=vram * GB,
        available_vram=min(vram, draw(gigabytes)) * GB,
        total_ram=ram * GB,
        available_ram=min(ram, draw(gigabytes)) * GB,
    )
    view = a_view(
        name,
        heard_s=draw(st.sampled_from((1, 1, 1, 500))),
        reports=draw(st.sampled_from((True, True, False))),
        installed=["llama-cpp"],
        files=draw(st.lists(st.sampled_from(("qwen.gguf", "eye.gguf", "x.gguf")), unique=True)),
        labels=draw(st.sampled_from(({}, {"room": "attic"}))),
        unreached=draw(st.sampled_from(({}, {}, {"us": "it does not answer"}))),
        resources=figures,
        vram_budget=draw(st.sampled_from(("", "", "6GB"))),
        max_replicas=draw(st.integers(1, 3)),
    )
    if view.report is None:
        return view
    fetches = draw(st.booleans())
    return replace(view, report=view.report.model_copy(update={"fetches_files": fetches}))


@st.composite
def replicas(draw: st.DrawFn) -> list[Replica]:
    numbers, changes = count(), count(1)
    return [
        a_row(
            draw(st.sampled_from(MODELS)),
            next(numbers),
            on=draw(st.sampled_from(NAMES)),
            gb=draw(gigabytes),
            since_s=draw(st.sampled_from((2, 60))),
            state=draw(st.sampled_from((ReplicaState.LOADED, ReplicaState.LOADED, *ReplicaState))),
            in_vram=draw(st.booleans()),
            last_used=draw(st.sampled_from((None, ago(5), ago(50)))),
            change=next(changes),
        )
        for _ in range(draw(st.integers(0, 8)))
    ]


@st.composite
def books(draw: st.DrawFn) -> tuple[MemoryBook, RateBook]:
    memory = draw(st.dictionaries(st.sampled_from(("", "GPU", "nvidia 9.0")), gigabytes, max_size=2))
    speeds = draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from((10.0, 11.0, 58.0)), max_size=3))
    return (
        MemoryBook(
            {
                MemoryKey("qwen", "abc", "", hardware): MemoryUse(size * GB if hardware else 0, size * GB)
                for hardware, size in memory.items()
            }
        ),
        RateBook.of(
            MeasuredRate(RateKey(Rate.TOKENS, NodeId(f"id-{name}"), "qwen"), speed, "llama-cpp", 1)
            for name, speed in speeds.items()
        ),
    )


called = st.frozensets(st.sampled_from((*NAMES, "room=attic")), max_size=2)
wishes = st.one_of(st.just(NodeWishes()), st.builds(NodeWishes, called, called))


@st.composite
def fleets(draw: st.DrawFn) -> PlacementFacts:
    there = draw(st.lists(st.sampled_from(NAMES), unique=True))
    rows_there = [row for row in draw(replicas()) if row.node.removeprefix("id-") in there]
    busy = draw(st.fixed_dictionaries({row.key: st.sampled_from((0, 0, 2)) for row in rows_there}))
    memory, speeds = draw(books())
    avoided = draw(st.sampled_from(("", "id-n0")))
    return PlacementFacts(
        nodes=[draw(views(name)) for name in there],
        replicas=rows(*rows_there),
        in_flight=lambda key: busy.get(key, 0),
        pinned=draw(st.sampled_from(((), ("a",)))),
        unfit=lambda node: "it is avoided" if node == avoided else "",
        shared=draw(st.sampled_from((False, False, True))),
        frontend="us",
        files=FILES[: draw(st.integers(0, 2))],
        memory=memory,
        spare=draw(st.sampled_from(({}, {"b": 1}))),
        groups=draw(st.sampled_from(({}, {"qwen": frozenset({"g"}), "c": frozenset({"g"})}))),
        turn=draw(turns),
        speeds=speeds,
        wishes=draw(wishes),
    )


needs = st.builds(
    lambda gb, **changes: a_need(gb, **changes),
    gigabytes,
    file=st.sampled_from(("qwen.gguf", "qwen.gguf", "")),
    on_cpu=st.sampled_from((False, False, True)),
    selector=st.sampled_from(({}, {}, {"room": "attic"})),
    on_gpu=st.sampled_from((MemoryUse(0, 0), MemoryUse(3 * GB, GB))),
)
supplies = st.lists(
    st.builds(Supply, has=st.booleans(), on_cpu=st.booleans()), min_size=len(NAMES), max_size=len(NAMES)
)


def known_by(supply: list[Supply], here: str) -> SupplyFacts:
    by_node = {NodeId(f"id-{name}"): one for name, one in zip(NAMES, supply, strict=True)}

    def complete(offer: NodeOffer) -> NodeOffer:
        one = by_node[offer.node]
        has_file = offer.has_file or offer.node == here
        return replace(offer, has_backend=one.has, on_cpu=one.on_cpu, has_file=has_file)

    return SupplyFacts(by_node.__getitem__, lambda node: node == here, complete)


heres = st.sampled_from(("", "id-n1"))


@settings(max_examples=examples(150))
@given(needs, fleets(), supplies, heres)
def test_same_answer_as_by_looking_at_all(
    need: Need, fleet: PlacementFacts, supply: list[Supply], here: str
) -> None:
    known = known_by(supply, here)
    plain = place(need, [known.complete(offer) for offer in offers(need, fleet)])
    assert at_once(best_place(need, fleet, known)) == plain


@settings(max_examples=examples(150))
@given(needs, fleets(), supplies, heres)
def test_no_node_is_better_than_it_looked(
    need: Need, fleet: PlacementFacts, supply: list[Supply], here: str
) -> None:
    known = known_by(supply, here)
    glance = Glance(need, fleet, known)
    offered = [known.complete(offer) for offer in offers(need, fleet)]
    assert glance.usual == usual_speed(offer.tokens_per_s for offer in offered)
    for view, offer in zip(fleet.nodes, offered, strict=True):
        fit = look(need, offer)
        if not isinstance(fit, Fit):
            continue
        first = glance.first(view)
        assert first is not None
        second = glance.second(view, first)
        assert second is not None
        assert first <= second <= fit.rank(glance.usual)


CHANGING = (
    *("nodes", "replicas", "now", "in_flight", "pinned", "unfit", "shared", "frontend", "files", "memory"),
    *("spare", "groups", "turn", "checks_disk"),
)


@st.composite
def later_fleets(draw: st.DrawFn, before: PlacementFacts) -> PlacementFacts:
    """The same some time later: one thing has changed."""
    changes = count(before.replicas.change + 1)

    def anew(row: Replica) -> Replica:
        state = draw(st.sampled_from((ReplicaState.LOADED, ReplicaState.UNLOADING)))
        since = draw(st.sampled_from((before.replicas.now, row.updated_at)))
        return replace(
            row, change=next(changes), state=state, memory_bytes=row.memory_bytes // 2, updated_at=since
        )

    match draw(st.sampled_from(CHANGING)):
        case "nodes":
            some = draw(st.sets(st.sampled_from(NAMES)))
            redrawn = [
                draw(views(name)) if (name := view.standing.node.name) in some else view
                for view in before.nodes
            ]
            return replace(before, nodes=redrawn)
        case "replicas":
            redrawn_rows = [anew(row) if draw(st.booleans()) else row for row in before.replicas.rows]
            seen = replace(rows(*redrawn_rows), now=before.replicas.now, change=next(changes))
            return replace(before, replicas=seen)
        case "now":
            later = before.replicas.now + timedelta(seconds=draw(st.sampled_from((1, 9, 30))))
            return replace(before, replicas=replace(before.replicas, now=later))
        case "in_flight":
            busy = draw(st.sampled_from((0, 2)))
            return replace(before, in_flight=lambda key: busy)
        case "turn":
            return replace(before, turn=draw(turns))
        case "unfit":
            why = draw(st.sampled_from(("", "it is avoided")))
            return replace(before, unfit=lambda node: why)
        case fact:
            return replace(before, **{fact: getattr(draw(fleets()), fact)})


turns = st.builds(
    Turn,
    st.sampled_from((timedelta(), timedelta(seconds=25))),
    st.frozensets(st.sampled_from([NodeId(f"id-{name}") for name in NAMES]), max_size=2),
    st.sampled_from((True, True, True, False)),
)


@settings(max_examples=examples(100))
@given(st.data(), needs, fleets(), supplies, heres)
def test_what_was_refused_before_is_told_as_if_looked_at_anew(
    data: st.DataObject, need: Need, fleet: PlacementFacts, supply: list[Supply], here: str
) -> None:
    refusals = RefusalBook()
    need = replace(
        need, memory_bytes=need.memory_bytes + 8 * GB, on_gpu=MemoryUse(0, 0)
    )  # Little room for it.
    for _ in range(8):
        known = known_by(supply, here)
        plain = place(need, [known.complete(offer) for offer in offers(need, fleet)])
        assert at_once(best_place(need, fleet, known, refusals)) == plain
        fleet = data.draw(later_fleets(fleet))
        if data.draw(st.integers(0, 7)) == 0:
            supply = data.draw(supplies)


def test_only_nodes_that_have_told_something_new_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def noted(need: Need, offer: NodeOffer) -> object:
        looked.append(offer.name)
        return look(need, offer)

    monkeypatch.setattr(shortlist, "look", noted)
    fleet, refusals = many(50), RefusalBook()
    first = at_once(best_place(a_need(60), fleet, ANYWHERE, refusals))
    assert len(looked) == 50
    looked.clear()
    nodes = [*fleet.nodes[1:], a_view("n0", files=["qwen.gguf"], installed=["llama-cpp"], sequence=2)]
    assert at_once(best_place(a_need(60), replace(fleet, nodes=nodes), ANYWHERE, refusals)) == first
    assert looked == ["n0"]


def full(**facts: Any) -> PlacementFacts:
    """A node whose only room is that of a model which was loaded a moment ago."""
    nodes = [a_view(files=["qwen.gguf"], installed=["llama-cpp"])]
    there = rows(a_row("a", gb=20, since_s=5, last_used=ago(1)))
    return replace(PlacementFacts(nodes, there, lambda key: 0, (), lambda node: ""), **facts)


def in_a_while(seconds: float, **facts: Any) -> PlacementFacts:
    fleet = full(**facts)
    return replace(fleet, replicas=replace(fleet.replicas, now=ago(-seconds)))


def with_row(**changes: Any) -> PlacementFacts:
    fleet = full()
    [row] = fleet.replicas.rows
    return replace(fleet, replicas=rows(replace(row, change=row.change + 1, **changes)))


def with_view(**changes: Any) -> PlacementFacts:
    return full(nodes=[a_view(files=["qwen.gguf"], installed=["llama-cpp"], **changes)])


@pytest.mark.parametrize(
    "later",
    [
        in_a_while(10),
        with_row(state=ReplicaState.UNLOADING),
        with_row(memory_bytes=2 * GB),
        full(in_flight=lambda key: 1),
        full(unfit=lambda node: "it is avoided"),
        full(pinned=("a",)),
        full(spare={"a": 0}),
        full(groups={"qwen": frozenset({"g"}), "a": frozenset({"g"})}),
        full(memory=MemoryBook({MemoryKey("qwen", "abc", "", "GPU"): MemoryUse(2 * GB, 0)})),
        full(turn=Turn(evicts=False)),
        full(turn=Turn(reserved=frozenset({NodeId("id-gpu-1")}))),
        in_a_while(30, in_flight=lambda key: 1, turn=Turn(waited=timedelta(seconds=30))),
        with_view(heard_s=500),
        with_view(unreached={"": "it does not answer"}),
        with_view(max_replicas_override=0),
        with_view(labels={"room": "attic"}, resources=replace(GPU, available_vram=24 * GB)),
    ],
)
def test_what_may_change_the_reason_is_noticed(later: PlacementFacts) -> None:
    need, refusals = a_need(10), RefusalBook()
    before = at_once(best_place(need, full(), ANYWHERE, refusals))
    assert isinstance(before, Unplaceable)
    plain = place(need, offers(need, later))
    assert plain != before
    assert at_once(best_place(need, later, ANYWHERE, refusals)) == plain


def test_refusals_of_the_models_that_were_looked_at_last_are_remembered() -> None:
    refusals, fleet = RefusalBook(), many(2)
    for number in range(40):
        at_once(best_place(a_need(60, model=f"m{number}"), fleet, ANYWHERE, refusals))
    assert refusals.models == [f"m{number}" for number in range(24, 40)]
    at_once(best_place(a_need(1, model="m39"), fleet, ANYWHERE, refusals))
    assert "m39" not in refusals.models


def many(number: int, **facts: Any) -> PlacementFacts:
    nodes = [a_view(f"n{one}", files=["qwen.gguf"], installed=["llama-cpp"]) for one in range(number)]
    held = rows(*(a_row("a", one, on=f"n{one}", gb=4) for one in range(number)))
    return PlacementFacts(nodes, held, lambda key: 0, (), lambda node: "", **facts)


ANYWHERE = SupplyFacts(lambda node: Supply(has=True), lambda node: False, lambda offer: offer)


def test_few_of_many_nodes_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[NodeOffer] = []

    def noted(need: Need, offer: NodeOffer) -> object:
        looked.append(offer)
        return look(need, offer)

    monkeypatch.setattr(shortlist, "look", noted)
    for gb in (6, 21):
        looked.clear()
        assert isinstance(at_once(best_place(a_need(gb), many(300), ANYWHERE)), Placed)
        assert len(looked) <= 2


def test_others_get_their_turn_while_all_nodes_are_looked_at() -> None:
    placed, slices = slice_count(best_place(a_need(60), many(300), ANYWHERE))
    assert isinstance(placed, Unplaceable)
    assert slices >= 300 // 20


def test_paths_are_collected_once_for_each_report() -> None:
    view, paths = a_view(files=["a.gguf"]), ReportPaths()
    assert paths.of(view) is paths.of(view)
    assert view.report is not None
    told = view.report.model_copy(update={"model_files": ()})
    assert paths.of(replace(view, report=told)) == frozenset()
    assert paths.of(view) == {"a.gguf"}
    assert not paths.have(replace(view, report=None), "a.gguf", frozenset({"a.gguf"}))
    paths.forget_others([])
    assert paths.of(replace(view, report=None)) == frozenset()


names = st.text("ab/", min_size=1, max_size=5)


@given(st.lists(names, unique=True), names)
def test_files_and_folders_are_found_as_by_looking_at_each_path(there: list[str], file: str) -> None:
    parts = frozenset(all_parts(file))
    assert ReportPaths().have(a_view(files=there), file, parts) == is_among(file, frozenset(there))


def test_few_of_many_nodes_are_looked_at_where_evictions_differ_only_in_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[NodeOffer] = []

    def noted(need: Need, offer: NodeOffer) -> object:
        looked.append(offer)
        return look(need, offer)

    monkeypatch.setattr(shortlist, "look", noted)
    fleet = many(200)
    sized = rows(
        *(replace(row, memory_bytes=(5 + at % 7) * GB) for at, row in enumerate(fleet.replicas.rows))
    )
    assert isinstance(at_once(best_place(a_need(21), replace(fleet, replicas=sized), ANYWHERE)), Placed)
    assert len(looked) <= 2
