"""After the storm: within a bound, who lives is in the fleet again, and who is dead is known to be."""

import anyio

from remuda.fleet.health import NodeStatus, Standing
from tests.sim.fleet import SimulatedFleet
from tests.sim.machines import Machine, OurMachine
from tests.sim.world import World

SETTLED_WITHIN_S = 180.0
"""A message late by 25 s, a worker that waits 60 s before it asks again, a silence of 60 s until a node
is offline, and what it takes to notice each."""

_LOOK_EVERY_S = 5.0


async def settle(world: World, fleet: SimulatedFleet) -> None:
    deadline = anyio.current_time() + SETTLED_WITHIN_S
    while True:
        await anyio.sleep(_LOOK_EVERY_S)
        wrong = unsettled(fleet)
        if not wrong:
            world.trace.event("settled")
            return
        if anyio.current_time() >= deadline:
            raise world.trace.violated("settles_in_time", *wrong)


def unsettled(fleet: SimulatedFleet) -> list[str]:
    """What is not yet as it should be."""
    if len(fleet.up) < len(fleet.frontends):
        return ["a frontend is not up"]
    standings = {standing.node.id: standing for standing in fleet.verdicts()}
    claims = {standing.node.claim.id for standing in standings.values() if standing.node.claim is not None}
    living = {machine: machine.life.node_id() for machine in fleet.machines if machine.life is not None}
    wrong = [
        _of_living(machine, standings.get(node) if node else None)
        for machine, node in living.items()
        if node not in claims
    ]
    owned = set(living.values())
    wrong += [_of_dead(standing) for node, standing in standings.items() if node not in owned]
    return [problem for problem in wrong if problem]


def _of_living(machine: Machine, standing: Standing | None) -> str:
    if not isinstance(machine, OurMachine):
        # Removed or moved, it never notices.
        lost = standing is None or not standing.node.approved or standing.node.source != machine.host
        return "" if lost or standing is None else _of_approved(machine, standing)
    if standing is None:
        return f"{machine} lives and has no row"
    if not standing.node.approved:
        return ""
    return _of_approved(machine, standing) or _of_boot(machine, standing)


def _of_approved(machine: Machine, standing: Standing) -> str:
    node, status = standing.node, standing.status
    expected = NodeStatus.DRAINING if node.drained else NodeStatus.HEALTHY
    if status is expected and not node.leaving:
        return ""
    return f"{machine} lives and is {status}: {standing.reasons}"


def _of_boot(machine: Machine, standing: Standing) -> str:
    assert machine.life is not None, "it lives"
    report, boot = standing.node.report, machine.life.boot_id
    if report is not None and report.boot_id == standing.node.boot_id == boot:
        return ""
    return f"{machine} lives in boot {boot}, and its row tells of {standing.node.boot_id}"


def _of_dead(standing: Standing) -> str:
    if standing.status in (NodeStatus.OFFLINE, NodeStatus.PENDING):
        return ""
    return f"{standing.node.name} is dead and {standing.status}"
