"""What a node can be asked for now, and in which words it cannot."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from remuda.fleet.health import Fleet, ListeningPeriod, ListeningPeriods, Standing
from remuda.fleet.verdicts import why_no_commands, why_no_removal
from tests.support.nodes import THRESHOLDS, node

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
UNHEARD = (
    "no heartbeat for 10 min; check its power, its network and its worker's log; continues when it returns"
)
RESUMED = "it is draining; continues when it is resumed"


def a_standing(*, silent_s: float = 0, **facts: Any) -> Standing:
    who = replace(node(last_heartbeat=NOW - timedelta(seconds=silent_s)), **facts)
    hearing = ListeningPeriods((ListeningPeriod(NOW - timedelta(hours=2), NOW),))
    return Fleet(NOW, hearing, [who]).standing(who, THRESHOLDS)


@pytest.mark.parametrize(
    ("facts", "commands", "removal"),
    [
        ({}, "", ""),
        ({"drained": True}, RESUMED, ""),
        ({"leaving": True}, RESUMED, "its worker is shutting down; continues when it returns"),
        ({"approved": False}, *["it is waiting for approval"] * 2),
        ({"silent_s": 600}, *[UNHEARD] * 2),
        ({"silent_s": 600, "drained": True}, *[UNHEARD] * 2),
    ],
)
def test_drained_node_is_asked_only_to_remove_what_is_of_no_use(
    facts: dict[str, Any], commands: str, removal: str
) -> None:
    standing = a_standing(**facts)
    assert (why_no_commands(standing), why_no_removal(standing)) == (commands, removal)
