"""Checkers of who is who: told apart by the machines themselves, which the code under test cannot see."""

from remuda.core.ids import NodeId
from remuda.wire.codec import decode
from remuda.wire.nodes import RegisterReply
from tests.sim.trace import Trace


class IdentityChecker:
    """A node's id, and with it its bus user and tokens, is one machine's for ever; and only that machine is
    heard as the node."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._owners: dict[NodeId, str] = {}

    def answered(self, who: str, path: str, answer: tuple[int, bytes] | None) -> None:
        """A frontend answered this machine, whether or not the answer arrives."""
        if answer is None or answer[0] >= 300:
            return
        if path == "register":
            node = NodeId(decode(RegisterReply, answer[1]).id)
            if self._owners.setdefault(node, who) != who:
                raise self._trace.violated("ids_stay_with_their_machine", node, self._owners[node], who)
        elif (owner := self._owners.get(NodeId(path.partition("/")[0]))) != who:
            raise self._trace.violated("only_the_node_speaks_for_itself", path, owner, who)
