"""Where a new replica goes, what has to go for it, and what is said when it can go nowhere."""

from dataclasses import replace
from typing import Any

import pytest

from remuda.core.ids import NodeId
from remuda.models.memory import MemoryUse
from remuda.scheduler.model import FilesTold, HoldReason, Need, NodeOffer, Placed, Unplaceable
from remuda.scheduler.placement import not_chosen, place
from remuda.wire.nodes import CutOffFile
from tests.unit.scheduler.offering import GB, a_cpu_offer, a_need, a_resident, an_offer


def chosen(need: Need, *offers: NodeOffer) -> str:
    placed = place(need, offers)
    assert isinstance(placed, Placed), placed
    return placed.node.removeprefix("id-")


def evicted(need: Need, *offers: NodeOffer) -> list[str]:
    placed = place(need, offers)
    assert isinstance(placed, Placed), placed
    return [key.model for key in placed.evict]


def refused(need: Need, *offers: NodeOffer) -> Unplaceable:
    placed = place(need, offers)
    assert isinstance(placed, Unplaceable), placed
    return placed


def why(need: Need, offer: NodeOffer) -> str:
    [reason] = refused(need, offer).reasons.values()
    return reason


# Choosing.


def test_node_with_room_takes_it_into_vram() -> None:
    need = a_need()
    memory = MemoryUse(need.memory_bytes, 0)
    assert place(need, [an_offer()]) == Placed(NodeId("id-gpu-1"), in_vram=True, memory=memory)


def test_node_without_gpu_takes_it_into_ram() -> None:
    need = a_need()
    memory = MemoryUse(0, need.memory_bytes)
    assert place(need, [a_cpu_offer()]) == Placed(NodeId("id-cpu-1"), in_vram=False, memory=memory)


def test_node_that_nothing_has_to_leave_comes_first() -> None:
    full = an_offer("full", a_resident("old", 20), free_gb=4)
    assert chosen(a_need(), full, a_cpu_offer("roomy", has_backend=False)) == "roomy"


def test_node_that_has_the_backend_comes_before_one_with_a_gpu() -> None:
    assert chosen(a_need(), an_offer("bare", has_backend=False), a_cpu_offer("ready")) == "ready"


def test_node_with_a_gpu_comes_before_an_idle_one_without() -> None:
    assert chosen(a_need(), an_offer("gpu", busy=9), a_cpu_offer("cpu")) == "gpu"


def test_least_busy_node_comes_before_one_with_more_room() -> None:
    assert chosen(a_need(), an_offer("busy", busy=2), an_offer("calm", free_gb=8, busy=1)) == "calm"


def test_a_spark_at_10_tokens_per_second_is_not_ranked_equal_to_a_5090_at_58() -> None:
    spark = an_offer("spark", free_gb=24, tokens_per_s=10.0)
    assert chosen(a_need(), spark, an_offer("5090", free_gb=8, tokens_per_s=58.0)) == "5090"


def test_fast_node_that_answers_many_comes_after_an_idle_slower_one() -> None:
    fast = an_offer("fast", tokens_per_s=58.0, busy=9)
    assert chosen(a_need(), fast, an_offer("slow", tokens_per_s=10.0)) == "slow"


def test_node_that_was_never_measured_counts_as_the_usual_one() -> None:
    measured = [an_offer("slow", tokens_per_s=10.0), an_offer("medium", tokens_per_s=40.0)]
    assert chosen(a_need(), *measured, an_offer("new", free_gb=20)) == "medium"
    assert chosen(a_need(), measured[0], an_offer("new", free_gb=20, tokens_per_s=0.0)) == "slow"


def test_what_decided_is_said_of_each_node_that_was_not_chosen() -> None:
    fleet = [
        an_offer("best", tokens_per_s=58.0),
        an_offer("spark", tokens_per_s=10.0),
        an_offer("far", has_file=False, copied_from="best"),
        an_offer("full", a_resident("old", 20), free_gb=4),
        an_offer("bare", has_backend=False),
        a_cpu_offer("cpu"),
        an_offer("drained", unfit="it is drained"),
    ]
    assert chosen(a_need(), *fleet) == "best"
    assert not_chosen(a_need(), fleet) == {
        "spark": "it is slower or busier (10.0 tokens/s against 58.0, no requests there)",
        "cpu": "the model would run on the CPU there",
        "bare": "it would have to install the backend first",
        "full": "1 replica would have to be unloaded there",
        "far": "the files would have to be copied there",
        "drained": "it is drained",
    }


def test_among_equals_the_one_with_most_room_left_is_chosen() -> None:
    assert chosen(a_need(), an_offer("tight", free_gb=7), an_offer("wide", free_gb=20)) == "wide"


def test_among_all_alike_the_id_decides() -> None:
    assert chosen(a_need(), an_offer("b"), an_offer("a"), an_offer("c")) == "a"


def test_need_that_nobody_knows_goes_where_most_is_free() -> None:
    assert chosen(a_need(0), an_offer("some", free_gb=1), an_offer("more", free_gb=2)) == "more"


def test_nodes_without_the_labels_asked_for_are_left_out() -> None:
    attic, cellar = an_offer("attic", labels={"room": "attic"}), an_offer("cellar", labels={"room": "cellar"})
    assert chosen(a_need(selector={"room": "cellar"}), attic, cellar) == "cellar"


def test_peer_that_does_not_answer_when_dialled_is_considered_last() -> None:
    unreached = an_offer("a-unreached", unreached=True)
    assert chosen(a_need(), unreached, a_cpu_offer("z-reached", has_backend=False)) == "z-reached"
    assert chosen(a_need(), unreached) == "a-unreached"


def test_peer_that_tells_nothing_of_its_memory_is_considered_last() -> None:
    silent = an_offer("a-silent", vram_total=0, vram_free=0)
    assert chosen(a_need(), silent) == "a-silent"
    assert chosen(a_need(), silent, a_cpu_offer("z-told", free_gb=7)) == "z-told"


# Which memory.


def in_vram(need: Need, offer: NodeOffer) -> bool:
    placed = place(need, [offer])
    assert isinstance(placed, Placed), placed
    return placed.in_vram


def test_build_for_the_cpu_takes_ram_beside_a_gpu() -> None:
    small_gpu = an_offer(vram_total=2 * GB, vram_free=2 * GB, ram_total=64 * GB, ram_free=60 * GB)
    assert not in_vram(a_need(8), replace(small_gpu, on_cpu=True))
    assert "needs 8.0 GiB of VRAM, 2.0 GiB available" in why(a_need(8), small_gpu)


def test_model_that_keeps_off_the_gpu_takes_ram_also_where_vram_is_free() -> None:
    assert not in_vram(a_need(on_cpu=True), an_offer(ram_total=64 * GB, ram_free=60 * GB))


def test_build_for_the_cpu_finds_no_room_in_vram() -> None:
    full = an_offer(on_cpu=True, ram_total=16 * GB, ram_free=4 * GB)
    assert why(a_need(), full).startswith("needs 6.2 GiB of RAM, 4.0 GiB free")


def test_node_where_it_fits_into_vram_comes_before_one_with_more_ram() -> None:
    in_ram = a_cpu_offer("a-cpu", ram_total=512 * GB, free_gb=512)
    no_gpu_build = an_offer("b-gpu", on_cpu=True, ram_total=512 * GB, ram_free=512 * GB)
    assert chosen(a_need(), in_ram, no_gpu_build, an_offer("z-gpu", free_gb=7)) == "z-gpu"


def test_peer_that_tells_of_its_vram_only_may_have_any_ram() -> None:
    assert not in_vram(a_need(900), an_offer(on_cpu=True, ram_total=0))


# Making room.


def test_least_recently_used_goes_and_no_more_than_needed() -> None:
    full = an_offer(
        "gpu-1", a_resident("new", 8, idle_s=5), a_resident("old", 8, idle_s=500), a_resident("mid", 8)
    )
    assert evicted(a_need(6), full_up(full)) == ["old"]


def test_one_large_goes_rather_than_two_small() -> None:
    full = an_offer(
        "gpu-1",
        a_resident("small", 3, idle_s=900),
        a_resident("other", 3, idle_s=800),
        a_resident("large", 8),
    )
    assert evicted(a_need(6), full_up(full)) == ["large"]


def test_ram_of_which_more_is_in_use_than_there_is_is_freed_as_well() -> None:
    """Measured replicas may take more than their node's budget; that is no lack beside any VRAM."""
    offer = a_cpu_offer("full", a_resident("a", 5), a_resident("b", 5, idle_s=90), free_gb=-1)
    got = place(a_need(3), [offer])
    assert isinstance(got, Placed)
    assert [key.model for key in got.evict] == ["b"]


def test_memory_that_a_node_has_not_is_no_way_out() -> None:
    full = a_cpu_offer("full", free_gb=0)
    got = place(replace(a_need(0), memory_bytes=0), [replace(full, ram_free=-1)])
    assert isinstance(got, Unplaceable)
    assert "VRAM" not in got.reasons["full"]


def test_of_as_few_as_possible_those_used_longest_ago_go() -> None:
    full = an_offer(
        "gpu-1",
        a_resident("a", 4, idle_s=10),
        a_resident("b", 4, idle_s=40),
        a_resident("c", 4, idle_s=30),
        a_resident("d", 1, idle_s=99),
    )
    assert evicted(a_need(7), full_up(full)) == ["b", "c"]


def test_what_was_used_longest_ago_in_all_the_fleet_goes() -> None:
    lately = an_offer("lately", a_resident("l", 20, idle_s=10), free_gb=0)
    long_ago = an_offer("long-ago", a_resident("o", 20, idle_s=900), free_gb=0, has_backend=False)
    assert chosen(a_need(), lately, long_ago) == "long-ago"


def test_only_nodes_with_the_labels_asked_for_have_to_make_room() -> None:
    other = an_offer("other", a_resident("old", 20, idle_s=900), free_gb=0)
    meant = an_offer("meant", a_resident("new", 20, idle_s=1), free_gb=0, labels={"room": "attic"})
    assert chosen(a_need(selector={"room": "attic"}), other, meant) == "meant"


def test_what_is_in_ram_does_not_leave_for_the_sake_of_vram() -> None:
    in_ram = a_cpu_offer("x", a_resident("old", 20)).residents
    assert not refused(a_need(), an_offer("gpu-1", *in_ram, free_gb=1)).waiting_helps


def test_what_is_in_vram_does_not_leave_for_the_sake_of_ram() -> None:
    full = an_offer("gpu-1", a_resident("old", 20), on_cpu=True, ram_total=16 * GB, ram_free=GB)
    assert not refused(a_need(), full).waiting_helps


def test_where_vram_is_ram_either_makes_room_for_the_other() -> None:
    mac = an_offer("mac", a_resident("old", 20), free_gb=1, ram_total=24 * GB, ram_free=GB, unified=True)
    assert evicted(a_need(), mac) == ["old"]
    assert evicted(a_need(), replace(mac, on_cpu=True)) == ["old"]
    in_ram = tuple(replace(one, in_vram=False) for one in mac.residents)
    assert evicted(a_need(), replace(mac, residents=in_ram)) == ["old"]


def test_nothing_leaves_ram_for_a_budget_of_vram() -> None:
    in_ram = replace(a_resident("old", 20), in_vram=False)
    capped = an_offer("mac", in_ram, vram_total=8 * GB, free_gb=1, ram_total=24 * GB, unified=True)
    assert not refused(a_need(), capped).waiting_helps


def test_need_that_nobody_knows_makes_the_longest_unused_leave_a_full_node() -> None:
    full = an_offer("gpu-1", a_resident("new", 8, idle_s=1), a_resident("old", 0, idle_s=9), free_gb=0)
    assert evicted(a_need(0), full) == ["old"]


def full_up(offer: NodeOffer) -> NodeOffer:
    return an_offer(offer.name, *offer.residents, free_gb=0)


# Refusing.

SMALLER = "a smaller quantisation or `context_size` needs less"
WITH_RAM: dict[str, Any] = {"ram_total": 64 * GB, "ram_free": 60 * GB}


@pytest.mark.parametrize(
    ("offer", "reason"),
    [
        (an_offer(unfit="drained by an admin"), "drained by an admin"),
        (an_offer(has_file=False), "qwen.gguf was not in its models folder at its last report; put it there"),
        (
            an_offer(has_file=False, models_path="/srv/models"),
            "qwen.gguf was not in its models folder /srv/models at its last report; put it there",
        ),
        (
            an_offer(has_file=False, files_told=FilesTold.SOME),
            "qwen.gguf is not among the files that its worker reports, which are not all it has; put it "
            "there with fewer others beside it",
        ),
        (
            an_offer(has_file=False, cut_off=CutOffFile(path="qwen.gguf", size=GB, missing=2 * GB)),
            "qwen.gguf is incomplete there (1.0 GiB of 3.0 GiB or more); wait if it is being copied, or "
            "else copy it again",
        ),
        (
            an_offer(has_file=False, files_told=FilesTold.NEVER),
            "its worker does not report whether it has qwen.gguf; share one models folder with it and start "
            "frontends with --distributed-shared-models",
        ),
        (
            an_offer(has_backend=False, disk_known=True, disk_free=GB // 2),
            "llama-cpp is not installed and may need 2.0 GiB of disk, 512 MiB free; make room there, or "
            "switch this check off with --no-distributed-disk-headroom-check",
        ),
        (
            an_offer(free_gb=3.1),
            f"needs 6.2 GiB of VRAM, 3.1 GiB free, and no idle model could be unloaded; {SMALLER}",
        ),
        (
            a_cpu_offer(free_gb=3.1),
            f"needs 6.2 GiB of RAM, 3.1 GiB free, and no idle model could be unloaded; {SMALLER}",
        ),
        (an_offer(vram_total=4 * GB), f"needs 6.2 GiB of VRAM, 4.0 GiB available; {SMALLER}"),
        (
            an_offer("gpu-1", a_resident("idle", 1), free_gb=3),
            "needs 6.2 GiB of VRAM, 3.0 GiB free, and unloading idle models would free only 1.0 GiB; "
            f"{SMALLER}",
        ),
        (
            an_offer(vram_total=4 * GB, **WITH_RAM),
            f"needs 6.2 GiB of VRAM, 4.0 GiB available; {SMALLER}; with `gpu_layers: 0` it would use RAM, of "
            "which 60.0 GiB is free",
        ),
        (
            an_offer(on_cpu=True, ram_total=4 * GB),
            f"needs 6.2 GiB of RAM, 4.0 GiB available; {SMALLER}; a build of llama-cpp for its GPU would use "
            "VRAM, of which 24.0 GiB is free",
        ),
    ],
)
def test_reason_says_what_is_lacking_and_what_would_help_where_no_waiting_does(
    offer: NodeOffer, reason: str
) -> None:
    assert why(a_need(), offer) == reason
    assert not refused(a_need(), offer).waiting_helps


def test_model_kept_off_the_gpu_is_told_of_room_in_vram() -> None:
    offer = an_offer(ram_total=4 * GB)
    assert why(a_need(on_cpu=True), offer).endswith(
        "without `gpu_layers: 0` it would use VRAM, of which 24.0 GiB is free"
    )


def test_engines_that_do_not_read_gguf_are_not_told_of_its_settings() -> None:
    offer = an_offer(vram_total=4 * GB, **WITH_RAM)
    assert why(a_need(file="qwen.safetensors"), offer) == (
        "needs 6.2 GiB of VRAM, 4.0 GiB available; a smaller quantisation needs less"
    )


@pytest.mark.parametrize(
    ("free_gb", "told"),
    [
        (6.1, "needs 6.2 GiB of VRAM, 6.1 GiB free"),
        (6.198, "needs 6.200 GiB of VRAM, 6.198 GiB free"),
        (6.199_999_9, "needs 6.199999999 GiB of VRAM, 6.199999900 GiB free"),
        (0.02, "needs 6.2 GiB of VRAM, 20 MiB free"),
        (0, "needs 6.2 GiB of VRAM, 0 MiB free"),
    ],
)
def test_figures_have_digits_enough_to_differ(free_gb: float, told: str) -> None:
    assert why(a_need(), an_offer(free_gb=free_gb)).startswith(told)


def test_need_that_nobody_knows_is_told_as_such() -> None:
    assert why(a_need(0), an_offer(free_gb=0)) == (
        "needs VRAM, how much is not known yet, 0 MiB free, and no idle model could be unloaded; "
        "unload or stop something there"
    )


def test_labels_that_a_node_lacks_are_named() -> None:
    need = a_need(selector={"room": "attic", "os": "linux"})
    offer = an_offer(labels={"os": "linux", "room": "cellar"})
    assert why(need, offer) == (
        "no label room=attic, which the model asks for; to set that: remuda nodes label NODE room=attic"
    )
    assert why(need, an_offer("the attic")) == (
        "no label os=linux and no label room=attic, which the model asks for; "
        "to set that: remuda nodes label NODE os=linux room=attic"
    )


def test_labels_that_only_a_node_itself_sets_are_not_suggested() -> None:
    need = a_need(selector={"node.name": "attic", "room": "attic"})
    assert why(need, an_offer()) == (
        "no label node.name=attic and no label room=attic, which the model asks for"
    )


def test_silent_node_without_the_labels_asked_for_is_not_waited_for() -> None:
    silent = an_offer(unfit="not heard for 40 s", passing=True)
    assert refused(a_need(), silent).waiting_helps
    unlabelled = refused(a_need(selector={"room": "attic"}), silent)
    assert not unlabelled.waiting_helps
    assert unlabelled.reasons["gpu-1"].startswith("no label room=attic")


def test_waiting_helps_until_a_worker_has_told_of_its_files() -> None:
    offer = an_offer(has_file=False, files_told=FilesTold.NOT_YET)
    assert why(a_need(), offer) == (
        "its worker has not reported yet whether it has qwen.gguf; wait for its next report"
    )
    assert refused(a_need(), offer).waiting_helps


def test_backend_that_ships_with_remuda_needs_no_disk() -> None:
    assert chosen(a_need(), an_offer("fresh", has_backend=False, builtin=True, disk_known=True)) == "fresh"


def test_full_disk_does_not_matter_where_nothing_is_to_be_installed() -> None:
    assert chosen(a_need(), an_offer("gpu-1", disk_known=True, disk_free=0)) == "gpu-1"


def test_disk_that_nobody_knows_is_no_reason() -> None:
    assert chosen(a_need(), an_offer("gpu-1", has_backend=False, disk_free=0)) == "gpu-1"


def test_waiting_helps_where_only_busy_replicas_are_in_the_way() -> None:
    busy = an_offer("gpu-1", a_resident("busy", 20, movable=False), free_gb=4)
    got = refused(a_need(), busy, an_offer("gpu-2", unfit="drained"))
    assert got.waiting_helps
    assert got.reasons == {
        "gpu-1": "needs 6.2 GiB of VRAM, 4.0 GiB free, and busy is in use; try again later",
        "gpu-2": "drained",
    }
    assert got.until == "on gpu-1 once busy has answered its requests"


@pytest.mark.parametrize(
    ("hold", "why", "until"),
    [
        (HoldReason.NEW, "a was loaded less than 10 s ago", "a has been loaded for 10 s"),
        (HoldReason.COMING, "a is being loaded", "a is loaded and may leave"),
        (HoldReason.LEAVING, "a is being unloaded", "a is unloaded"),
    ],
)
def test_what_is_not_in_use_is_not_called_busy(hold: HoldReason, why: str, until: str) -> None:
    got = refused(a_need(), an_offer("gpu-1", a_resident("a", 20, movable=False, hold=hold), free_gb=4))
    assert got.reasons == {"gpu-1": f"needs 6.2 GiB of VRAM, 4.0 GiB free, and {why}; try again later"}
    assert got.until == f"on gpu-1 once {until}"


def test_several_that_stay_for_now_are_told_each_with_its_cause() -> None:
    stay = [
        a_resident("a", 8, movable=False),
        a_resident("b", 8, movable=False),
        a_resident("c", 4, movable=False, hold=HoldReason.NEW),
    ]
    got = refused(a_need(), an_offer("gpu-1", *stay, free_gb=4))
    assert "and a, b are in use, c was loaded less than 10 s ago; try again later" in got.reasons["gpu-1"]
    assert got.until == "on gpu-1 once a, b have answered their requests and c has been loaded for 10 s"


def test_pin_that_is_in_the_way_is_named_with_what_ends_it() -> None:
    pinned = a_resident("big one", 20, movable=False, hold=HoldReason.PINNED)
    kept = a_resident("small", 1, movable=False, hold=HoldReason.KEPT)
    got = refused(a_need(), an_offer("gpu-1", free_gb=3, kept=(kept, pinned)))
    assert got.reasons == {
        "gpu-1": "needs 6.2 GiB of VRAM, 3.0 GiB free, and big one is pinned there, small is to stay loaded; "
        "to let big one go: remuda models scale 'big one' --no-pin"
    }
    assert not got.waiting_helps
    assert not got.until
    small = an_offer("gpu-1", free_gb=5.5, kept=(kept,))
    assert "small is to stay loaded; to let small go: remuda models scale small --min 0" in why(
        a_need(), small
    )


def test_refusal_by_an_estimate_names_what_was_measured_so_far() -> None:
    """RAM fills with use: what was measured there counts only where it is more."""
    small, large = MemoryUse(0, 3 * GB), MemoryUse(0, 7 * GB)
    refusal = why(a_need(), a_cpu_offer(ram_total=6 * GB, free_gb=6, measured_in_ram=small))
    assert refusal.startswith("needs 6.2 GiB of RAM (expected; 3.0 GiB measured so far), 6.0 GiB available")
    refusal = why(a_need(), a_cpu_offer(ram_total=6 * GB, free_gb=6, measured_in_ram=large))
    assert refusal.startswith("needs 7.0 GiB of RAM (measured), 6.0 GiB available")


def test_pin_is_not_named_where_its_end_would_not_be_enough() -> None:
    kept = a_resident("small", 1, movable=False, hold=HoldReason.PINNED)
    assert "pinned" not in why(a_need(), an_offer("gpu-1", free_gb=3, kept=(kept,)))


def test_node_with_as_many_replicas_of_the_model_as_it_may_have_takes_no_more() -> None:
    offer = an_offer("gpu-1", a_resident("qwen"))
    raises = "--max-replicas-per-model on its worker raises that"
    assert why(a_need(), offer) == f"it has 1 replica of qwen and may have 1; {raises}"
    assert refused(a_need(), offer).waiting_helps
    two = an_offer("gpu-1", a_resident("qwen"), a_resident("qwen"), slots=2)
    assert why(a_need(), two) == f"it has 2 replicas of qwen and may have 2; {raises}"


def test_replicas_of_other_models_take_no_slot() -> None:
    assert chosen(a_need(), an_offer("gpu-1", a_resident("other"), a_resident("another"))) == "gpu-1"


def test_without_nodes_there_is_nothing_to_say() -> None:
    assert refused(a_need()).reasons == {}


def test_nodes_that_lack_the_same_are_told_together_and_what_is_nearest_to_working_first() -> None:
    got = refused(
        a_need(selector={"room": "shed"}),
        an_offer("attic"),
        an_offer("barn", unfit="drained"),
        an_offer("cellar", has_file=False, labels={"room": "shed"}),
        an_offer("front"),
        an_offer("yard", unfit="not heard for 40 s", passing=True, labels={"room": "shed"}),
    )
    assert [line.partition(",")[0] if line.startswith("attic") else line for line in got.told()] == [
        "yard: not heard for 40 s",
        "cellar: qwen.gguf was not in its models folder at its last report; put it there",
        "attic",
        "barn: drained",
    ]
    assert got.told()[2].startswith("attic, front: no label room=shed")


def test_of_many_reasons_a_sentence_has_some_and_counts_the_rest() -> None:
    refused = Unplaceable({f"n{number}": f"reason {number // 2}" for number in range(9)})
    assert refused.told(most=3) == [
        "n0, n1: reason 0",
        "n2, n3: reason 1",
        "n4, n5: reason 2",
        "and 3 more nodes",
    ]
    assert len(refused.told()) == 5
    assert refused.told(leaving_out={"n8"}, most=4) == refused.told()[:4]


def test_nothing_is_placed_into_a_gpu_that_its_owner_uses() -> None:
    claimed = "its owner uses the GPU: game, 85 % of the time and 6.0 GiB"
    refused = place(a_need(), [an_offer(vram_claimed=claimed)])
    assert isinstance(refused, Unplaceable)
    assert refused.reasons == {"gpu-1": claimed}
    assert refused.waiting_helps
    beside = an_offer(vram_claimed=claimed, ram_total=64 * GB, ram_free=60 * GB)
    assert isinstance(place(a_need(on_cpu=True), [beside]), Placed)
    assert isinstance(place(a_need(), [an_offer(vram_claimed=claimed), a_cpu_offer()]), Placed)


# Further replicas.


def test_a_further_replica_goes_where_none_is_though_there_is_less_room_and_more_to_do() -> None:
    beside = an_offer("beside", free_gb=20, beside=True, spreads=True)
    other = an_offer("other", free_gb=8, busy=3, spreads=True)
    assert chosen(a_need(), beside, other) == "other"
    assert not_chosen(a_need(), [beside, other]) == {"beside": "a replica of the model is there already"}


def test_a_further_replica_has_nothing_unloaded_for_a_node_of_its_own() -> None:
    beside = an_offer("beside", free_gb=20, beside=True, spreads=True)
    full = an_offer("full", a_resident("old", 20), free_gb=4, spreads=True)
    assert chosen(a_need(), beside, full) == "beside"


def test_a_further_replica_goes_to_no_node_that_is_slower_by_an_order_of_magnitude() -> None:
    beside = an_offer("beside", beside=True, spreads=True, tokens_per_s=60.0)
    spark = an_offer("spark", spreads=True, tokens_per_s=2.0)
    assert chosen(a_need(), beside, spark) == "beside"


def test_no_replica_of_a_model_goes_for_another_of_it() -> None:
    own = a_resident("qwen", 20, movable=False, hold=HoldReason.SAME)
    full = replace(an_offer("full", own, free_gb=4, beside=True, spreads=True, slots=2), kept=(own,))
    assert "is loaded there already; to let qwen go: remuda models unload qwen" in why(a_need(), full)
    assert not refused(a_need(), full).waiting_helps
