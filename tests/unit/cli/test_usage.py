"""The table of `remuda usage`."""

import pytest
import rich.console

from remuda.cli.render import fitting
from remuda.cli.usage import _columns as columns
from remuda.wire.usage import UsageCounts, UsageItem, UsageView


def printed(view: UsageView) -> list[list[str]]:
    output = rich.console.Console(width=120)
    with output.capture() as shown:
        output.print(fitting(columns(view), output))
    return [line.split() for line in shown.get().splitlines()]


@pytest.mark.parametrize("cost", ["", "1.5"])
def test_usage_ends_with_its_total_and_shows_costs_where_there_are_prices(cost: str) -> None:
    item = UsageItem(
        key="app", model="m", requests=1200, failed=3, prompt_tokens=9, completion_tokens=8, cost=cost
    )
    nobody = UsageItem(key="", model="m", requests=1, failed=0, prompt_tokens=1, completion_tokens=1)
    total = UsageCounts(requests=1201, failed=3, prompt_tokens=10, completion_tokens=9, cost=cost)
    rows = printed(UsageView(since="2026-03-01", until="2026-03-02", usage=(item, nobody), total=total))
    head, *lines = rows
    assert ("COST" in head) is bool(cost)
    end = [cost] if cost else []
    assert lines[0] == ["app", "m", "1,200", "3", "9", "8", *end]
    assert lines[1][:2] == ["-", "m"]
    assert lines[2] == ["total", "1,201", "3", "10", "9", *end]
