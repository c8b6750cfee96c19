"""Which GPUs a process sees."""

from remuda.worker.hardware.model import Gpu
from remuda.worker.launching.environment import visible_gpus
from tests.unit.worker.hardware.test_model import machine

GIB = 1 << 30


def test_process_sees_the_gpus_it_is_given_whoever_made_them() -> None:
    assert visible_gpus({}, [2, 0]) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,2",
        "HIP_VISIBLE_DEVICES": "0,2",
        "ZE_AFFINITY_MASK": "0,2",
    }


def test_nothing_is_said_where_none_is_given_or_the_owner_has_chosen() -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "1"}, [0]) == {}
    assert visible_gpus({"ROCR_VISIBLE_DEVICES": "1"}, [0]) == {}


def cards(*gpus: Gpu) -> list[int | None]:
    return [gpu.index for gpu in machine(*gpus).separate_gpus]


def test_gpus_are_several_memories_where_each_can_be_given_alone() -> None:
    one, other = (Gpu("nvidia", "a card", 24 * GIB, 24 * GIB, index=index) for index in (0, 1))
    assert cards(one, other) == [0, 1]
    assert cards(one) == [], "there is nothing to choose"
    assert cards(one, Gpu("nvidia", "a slice", 10 * GIB, None)) == []
    assert cards(one, Gpu("nvidia", "shared", 24 * GIB, None, unified=True, index=1)) == []
    assert cards(one, other, Gpu("intel", "of the board", 1, None)) == [0, 1], "no build uses both vendors'"
