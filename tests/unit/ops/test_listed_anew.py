"""A node that tells nothing by itself is asked what it has as soon as something was done there."""

from tests.unit.ops.build import BOOT, NODE, running
from tests.unit.ops.test_reconciler_plan import a_pass, a_request, a_view


def test_an_attempt_that_ended_makes_its_nodes_list_old() -> None:
    step = running()
    answered = a_request(step, ended=True)
    decided = a_pass(step, views=(a_view(reports=False),), requests=(answered,))
    assert decided.list_anew == {(NODE, BOOT)}


def test_one_that_goes_on_does_not() -> None:
    step = running()
    assert not a_pass(step, views=(a_view(reports=False),), requests=(a_request(step),)).list_anew


def test_a_node_that_reports_needs_no_asking() -> None:
    step = running()
    assert not a_pass(step, requests=(a_request(step, ended=True),)).list_anew
