"""Checkers of what is concluded. They run on every snapshot that any frontend reads."""

from collections.abc import Sequence
from datetime import timedelta

from remuda.core.ids import NodeId
from remuda.fleet.health import NodeStatus, Reachability, Standing, Thresholds
from tests.sim.ledger import Ledger
from tests.sim.trace import Trace


class VerdictChecker:
    def __init__(self, ledger: Ledger, thresholds: Thresholds, trace: Trace) -> None:
        self._ledger = ledger
        self._thresholds = thresholds
        self._trace = trace
        self._seen: dict[NodeId, tuple[timedelta, int, int]] = {}

    def look(self, standings: Sequence[Standing]) -> None:
        for standing in standings:
            self._check_approval(standing)
            self._check_blame(standing)
            self._check_silence_grows(standing)

    def agree(self, verdicts: Sequence[Sequence[Standing]]) -> None:
        """Every frontend that can read the store concludes the same from it."""
        if any(verdict != verdicts[0] for verdict in verdicts):
            raise self._trace.violated("frontends_agree", *verdicts)

    def _check_approval(self, standing: Standing) -> None:
        pending = standing.status is NodeStatus.PENDING
        if pending is standing.node.approved:
            raise self._trace.violated("unapproved_is_pending", standing.node.name, standing.status)

    def _check_blame(self, standing: Standing) -> None:
        """No silence is held against a node but what somebody could have heard."""
        node = standing.node
        most_s = self._ledger.hearing.silence_most_s(self._ledger.heard[node.id])
        if standing.silence.total_seconds() > most_s:
            raise self._trace.violated("silence_was_listened_to", node.name, standing.silence, most_s)
        if most_s >= self._thresholds.unhealthy_after.total_seconds() or node.departed:
            return
        # One that says itself that it cannot be commanded is believed at once, and one that has not
        # reported yet may not have connected.
        if standing.reachability is not Reachability.UP and not node.cut_off and not node.connecting:
            raise self._trace.violated("who_was_just_heard_is_up", node.name, standing.reachability)

    def _check_silence_grows(self, standing: Standing) -> None:
        node_id, hearing = standing.node.id, self._ledger.hearing
        now = (standing.silence, self._ledger.heard_count[node_id], hearing.era)
        before = self._seen.get(node_id)
        self._seen[node_id] = now
        if before is not None and before[1:] == now[1:] and now[0] < before[0]:
            raise self._trace.violated("silence_grows", standing.node.name, before[0], now[0])
