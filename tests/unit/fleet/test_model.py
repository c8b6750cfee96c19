"""Automatic labels, selectors, and VRAM budgets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.fleet.model import (
    Resources,
    auto_labels,
    labels_match,
    merged_labels,
    node_vram_ceiling,
    usable_vram,
    vram_bucket,
    vram_ceiling,
)
from tests.support.nodes import node

GIB = 1 << 30


@pytest.mark.parametrize(
    ("gib", "bucket"),
    [
        (141, "80GB+"),
        (80, "80GB+"),
        (79, "48GB"),
        (24, "24GB"),
        (23.9, "16GB"),
        (8, "8GB"),
        (6, "6GB"),
        (0.5, "0GB"),
    ],
)
def test_vram_buckets(gib: float, bucket: str) -> None:
    assert vram_bucket(int(gib * GIB)) == bucket


def test_a_node_without_gpu_gets_no_gpu_labels() -> None:
    assert auto_labels("pi", Resources(), 2) == {"node.name": "pi", "node.replica-slots": "2"}


def test_automatic_labels_win_over_the_workers() -> None:
    assert merged_labels({}, {"node.name": "x"}, {"node.name": "pi"})["node.name"].value == "pi"


def test_a_selector_matches_only_if_every_pair_does() -> None:
    labels = merged_labels({}, {"a": "1", "b": "2"}, {})

    assert labels_match(labels, {})
    assert labels_match(labels, {"a": "1", "b": "2"})
    assert not labels_match(labels, {"a": "1", "c": "3"})
    assert not labels_match(labels, {"a": "2"})


@pytest.mark.parametrize(
    ("text", "of_1000"),
    [
        ("", None),
        ("  ", None),
        ("80%", 800),
        ("0.8", 800),
        ("1", 1000),
        ("100%", 1000),
        ("500", 500),
        ("1KB", 1000),
        ("0.5kb", 500),
        ("5000GB", 1000),
    ],
)
def test_budget_forms(text: str, of_1000: int | None) -> None:
    assert vram_ceiling(text, 1000) == of_1000


def test_decimal_and_binary_units_differ() -> None:
    assert (vram_ceiling("12GB", 1 << 40), vram_ceiling("12GiB", 1 << 40)) == (12 * 10**9, 12 * GIB)


@pytest.mark.parametrize("text", ["200%", "-5GB", "lots", "0%", "0", "1.5", "12 parsecs", "1e3", "nan", "٣%"])
def test_absurd_budgets_are_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(Invalid, match="VRAM budget"):
        vram_ceiling(text, 1000)


@given(st.text(max_size=20), st.integers(0, 1 << 50))
def test_any_text_gives_a_ceiling_within_the_total_or_a_refusal(text: str, total: int) -> None:
    try:
        cap = vram_ceiling(text, total)
    except Invalid:
        return
    assert cap is None or 0 <= cap <= total


def test_free_vram_is_capped_by_the_budget_and_the_total_stays_raw() -> None:
    capped = node(resources=Resources(total_vram=1000, available_vram=900), vram_budget="50%")

    assert (usable_vram(capped), node_vram_ceiling(capped), capped.resources.total_vram) == (500, 500, 1000)


def test_a_workers_unreadable_budget_means_no_cap() -> None:
    assert node_vram_ceiling(node(vram_budget="much")) is None
