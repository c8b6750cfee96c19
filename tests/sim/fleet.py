"""The frontends and machines of a simulation."""

from remuda.fleet.health import Standing
from tests.sim.frontends import FrontendHost
from tests.sim.machines import Impostor, LocalAiMachine, Machine, OldMachine, OurMachine
from tests.sim.network import Network
from tests.sim.store import at_once
from tests.sim.world import World


class SimulatedFleet:
    def __init__(self, world: World) -> None:
        dice = world.dice.fork("fleet")
        self._world = world
        # Small fleets are the more likely: most of what goes wrong needs few to go wrong with.
        frontends, machines = dice.whole(1, dice.whole(1, 3)), dice.whole(3, dice.whole(3, 12))
        self.frontends = [FrontendHost(world, number) for number in range(frontends)]
        self.network = Network(world, self.frontends)
        self.impostor = Impostor(self.network)
        self.machines: list[Machine] = []
        for number in range(machines):
            kinds = {OurMachine: 6.0, LocalAiMachine: 2.0, OldMachine: 2.0}
            kind = dice.weighted(kinds) if number else OurMachine
            # Now and then two machines are called the same, as clones of one disk are.
            name = dice.pick(self.machines).name if number and dice.chance(0.25) else f"node-{number}"
            self.machines.append(kind(world, self.network, name, number))
        world.hearers.extend(self.frontends)

    def start(self) -> None:
        for frontend in self.frontends:
            self._world.tasks.start_soon(frontend.run)
        for machine in self.machines:
            machine.start()

    @property
    def up(self) -> list[FrontendHost]:
        return [frontend for frontend in self.frontends if frontend.up]

    def verdicts(self) -> list[Standing]:
        """What every frontend that is up concludes at this very moment, and all the same."""
        verdicts = []
        for frontend in self.up:
            frontend.store.undisturbed = True
            verdicts.append(at_once(frontend.registry.standings()))
            frontend.store.undisturbed = False
        self._world.verdicts.agree(verdicts)
        return verdicts[0]
