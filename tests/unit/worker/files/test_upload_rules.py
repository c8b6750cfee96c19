"""The table of section 7.4, and that a client which keeps to the contract always gets its file through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.worker.files.upload_rules import (
    Accept,
    AllThere,
    ContentRange,
    Existing,
    OtherContent,
    PartialFacts,
    UploadVerdict,
    WrongStart,
    judge,
    parse_hash,
    parse_range,
)

MINE, THEIRS = "a" * 64, "b" * 64


def test_a_range_is_parsed() -> None:
    assert parse_range("bytes 5-9/10") == ContentRange(5, 9, 10)
    assert parse_range("bytes 5-9/10").last
    assert parse_hash(MINE.upper()) == MINE


@given(st.text(max_size=30) | st.from_regex(r"bytes -?\d*-\d*/(\d*|\*)"))
def test_whatever_is_no_range_is_refused(text: str) -> None:
    try:
        parsed = parse_range(text)
    except Invalid:
        return
    assert 0 <= parsed.start <= parsed.end < parsed.total


@pytest.mark.parametrize(
    ("start", "sha256", "there", "verdict"),
    [
        (0, MINE, Existing(), Accept(MINE, restart=True)),
        (0, "", Existing(), Accept("", restart=True)),
        (0, MINE, Existing(PartialFacts(5, THEIRS)), Accept(MINE, restart=True)),
        (0, "", Existing(PartialFacts(5, MINE)), Accept("", restart=True)),
        (0, MINE, Existing(PartialFacts(5, MINE)), WrongStart(5)),
        (0, MINE, Existing(PartialFacts(0, MINE)), Accept(MINE, restart=True)),
        (0, MINE, Existing(PartialFacts(20, MINE)), AllThere(MINE)),
        (0, MINE, Existing(PartialFacts(21, MINE)), Accept(MINE, restart=True)),
        (0, MINE, Existing(size=10, sha256=MINE), WrongStart(10)),
        (0, MINE, Existing(size=10, sha256=THEIRS), Accept(MINE, restart=True)),
        (0, MINE, Existing(size=10), Accept(MINE, restart=True)),
        (0, "", Existing(size=10, sha256=MINE), Accept("", restart=True)),
        # A partial upload of other content is in the way of nothing, even if the old file is the wanted one.
        (0, MINE, Existing(PartialFacts(5, THEIRS), 10, MINE), Accept(MINE, restart=True)),
        (5, MINE, Existing(PartialFacts(5, MINE)), Accept(MINE, restart=False)),
        (5, "", Existing(PartialFacts(5, MINE)), Accept(MINE, restart=False)),
        (5, MINE, Existing(PartialFacts(5, "")), Accept(MINE, restart=False)),
        (5, MINE, Existing(PartialFacts(5, THEIRS)), OtherContent()),
        (5, MINE, Existing(PartialFacts(4, MINE)), WrongStart(4)),
        (5, MINE, Existing(), WrongStart(0)),
        (5, MINE, Existing(size=5), WrongStart(5)),
    ],
)
def test_verdicts(start: int, sha256: str, there: Existing, verdict: UploadVerdict) -> None:
    assert judge(ContentRange(start, 19, 20), sha256, there) == verdict


partials = st.none() | st.builds(PartialFacts, st.integers(0, 20), st.sampled_from(["", MINE, THEIRS]))


@given(st.builds(Existing, partials, st.none() | st.integers(0, 20), st.sampled_from(["", MINE, THEIRS])))
def test_a_client_that_looks_first_is_let_in_at_once(there: Existing) -> None:
    """Unless it need not send anything: step 1 of the client's side."""
    partial = there.partial
    if partial is None and there.size is not None and there.sha256 == MINE:
        return
    resumes = partial is not None and partial.target == MINE and partial.size < 20
    start = partial.size if partial is not None and resumes else 0

    verdict = judge(ContentRange(start, 19, 20), MINE, there)

    assert isinstance(verdict, Accept | AllThere)
    assert verdict.target == MINE
    if isinstance(verdict, Accept):
        assert verdict.restart == (start == 0)
