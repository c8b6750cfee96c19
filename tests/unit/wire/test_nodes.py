"""Which registrations and labels can be taken, and what error answers say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core import limits
from remuda.wire.codec import encode
from remuda.wire.nodes import (
    TOKEN_WRONG,
    NodeError,
    RegisterRequest,
    WorkerIdentity,
    error_text,
    label_problem,
    problems,
    storable_labels,
)

GOOD = RegisterRequest(name="gpu-1", address="gpu-1:50051")


def test_good_registration_has_no_problems() -> None:
    longest = RegisterRequest(name="é" * 127, address="a" * 512, http_address="a" * 512, node_type="backend")

    assert problems(GOOD) == []
    assert problems(longest) == []
    assert problems(RegisterRequest(name="agent-1", node_type="agent")) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "é" * 128}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"name": "a\x1b]0;b\x07"}, "name"),
        ({"address": "h:1\n"}, "address"),
        ({"node_type": "router"}, "node_type"),
        ({"address": ""}, "address"),
        ({"address": "a" * 513}, "address"),
        ({"http_address": "a" * 513}, "http_address"),
        ({"gpu_vendor": "a" * 256}, "gpu_vendor"),
        ({"machine_id": "a" * 256}, "machine_id"),
        ({"remuda": WorkerIdentity(boot_id="a" * 256)}, "remuda.boot_id"),
    ],
)
def test_problem_names_the_field(change: dict[str, object], field: str) -> None:
    found = problems(GOOD.model_copy(update=change))

    assert [problem.partition(": ")[0] for problem in found] == [field]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", "v"),
        ("two words", "v"),
        ("k" * 129, "v"),
        ("k", "v" * 256),
        ("k", "\0"),
        ("k\0", "v"),
        ("k\n", "v"),
    ],
)
def test_label_that_cannot_be_stored_is_skipped_with_its_reason(key: str, value: str) -> None:
    kept, skipped = storable_labels({"room": "attic", key: value})

    assert kept == {"room": "attic"}
    assert skipped == [label_problem(key, value)]


def test_labels_are_bounded_in_number() -> None:
    kept, skipped = storable_labels({f"k{n}": "v" for n in range(limits.NODE_LABELS_MAX + 3)})

    assert (len(kept), len(skipped)) == (limits.NODE_LABELS_MAX, 3)


@given(st.dictionaries(st.text(max_size=140), st.text(max_size=270)))
def test_every_label_is_kept_or_explained(labels: dict[str, str]) -> None:
    kept, skipped = storable_labels(labels)

    assert kept.items() <= labels.items()
    assert len(kept) + len(skipped) == len(labels)
    assert all(len(key) <= 128 and len(value) <= 255 for key, value in kept.items())


def test_longest_label_is_kept() -> None:
    assert storable_labels({"ü" * 128: "ü" * 255})[1] == []


def test_both_error_shapes_are_understood() -> None:
    assert error_text(encode(NodeError.of(404, "node not found"))) == "node not found"
    assert error_text(encode(TOKEN_WRONG)) == "invalid registration token"


@pytest.mark.parametrize("payload", [b"", b"<html>", b"{}", b'{"error":7}', b'{"error":{"code":"x"}}'])
def test_other_error_pages_say_nothing(payload: bytes) -> None:
    assert error_text(payload) == ""
