"""What a worker says of itself: in its registration and in its heartbeats."""

import json

import pytest

from remuda.core.ids import BootId, MachineId
from remuda.wire.codec import encode
from remuda.wire.nodes import Report, RunningReplica
from remuda.worker.addresses import Advertised
from remuda.worker.hardware.model import Hardware
from remuda.worker.identity import Introduction, register_request
from remuda.worker.reporter import heartbeat
from tests.support.hardware import CARD, machine

ME = Introduction(
    name="gpu-1",
    machine_id=MachineId("m1"),
    boot_id=BootId("b1"),
    version="0.1.0",
    labels={"room": "cellar"},
    max_replicas_per_model=2,
)


def registered(hardware: Hardware) -> dict[str, object]:
    body: dict[str, object] = json.loads(
        encode(register_request(ME, hardware, Advertised("h:50051", "h:50050")))
    )
    return body


def beat(hardware: Hardware) -> dict[str, object]:
    body: dict[str, object] = json.loads(encode(heartbeat(hardware, Report(boot_id="b1", sequence=3))))
    return body


def test_a_registration_tells_everything_a_frontend_asks_for() -> None:
    assert registered(machine(gpus=(CARD,), capability="nvidia-cuda-12")) == {
        "name": "gpu-1",
        "address": "h:50051",
        "http_address": "h:50050",
        "total_vram": 24 << 30,
        "available_vram": 20 << 30,
        "total_ram": 16 << 30,
        "available_ram": 8 << 30,
        "total_disk": 1 << 40,
        "available_disk": 1 << 39,
        "gpu_vendor": "nvidia",
        "gpu_compute_capability": "8.9",
        "capability": "nvidia-cuda-12",
        "max_replicas_per_model": 2,
        "labels": {
            "room": "cellar",
            "node.replica-slots": "2",
            "node.os": "linux",
            "node.arch": "amd64",
        },
        "machine_id": "m1",
        "remuda": {"version": "0.1.0", "boot_id": "b1"},
    }


def test_a_registration_leaves_out_what_is_not_known() -> None:
    body = registered(machine(total_ram=0, available_ram=0, total_disk=None, available_disk=None))
    assert not body.keys() & {"total_ram", "available_ram", "total_disk", "available_disk"}
    assert (body["total_vram"], body["gpu_vendor"]) == (0, "")


def test_a_heartbeat_without_gpu_says_nothing_of_vram() -> None:
    assert beat(machine()) == {
        "available_ram": 8 << 30,
        "available_disk": 1 << 39,
        "total_disk": 1 << 40,
        "report": {"boot_id": "b1", "sequence": 3, "installed": [], "replicas": [], "work": []},
    }


def test_a_heartbeat_tells_free_vram() -> None:
    assert beat(machine(gpus=(CARD,)))["available_vram"] == 20 << 30


def test_a_full_machine_is_said_to_be_full() -> None:
    body = beat(machine(available_ram=0, available_disk=0))
    assert (body["available_ram"], body["available_disk"]) == (0, 0)


@pytest.mark.parametrize(
    ("taken", "free_of_machine", "told"),
    [((), 8, 8), ((3,), 8, 8), ((3, 9), 8, 4), ((3, 9), 2, 2), ((3, 20), 8, 0)],
)
def test_of_a_budget_what_models_use_is_not_free(
    taken: tuple[int, ...], free_of_machine: int, told: int
) -> None:
    machine_with_budget = machine(available_ram=free_of_machine << 30, ram_is_budget=True)
    replicas = tuple(RunningReplica(model_id="m", ram_bytes=size << 30) for size in taken)
    assert heartbeat(machine_with_budget, Report(replicas=replicas)).available_ram == told << 30
    without = machine(available_ram=free_of_machine << 30)
    assert heartbeat(without, Report(replicas=replicas)).available_ram == free_of_machine << 30
