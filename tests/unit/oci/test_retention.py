"""Which blobs are let go."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from remuda.oci.blobs import StoredBlob, to_let_go

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
blobs = st.lists(
    st.builds(
        StoredBlob,
        digest=st.from_regex("[a-f]{2}", fullmatch=True),
        size=st.integers(0, 100),
        used_at=st.integers(0, 100).map(lambda hours: EPOCH + timedelta(hours=hours)),
    ),
    unique_by=lambda blob: blob.digest,
    max_size=12,
)


@given(blobs=blobs, keep=st.sets(st.from_regex("[a-f]{2}", fullmatch=True)), budget=st.integers(0, 600))
def test_kept_blobs_stay_and_the_budget_holds_where_it_can(
    blobs: list[StoredBlob], keep: set[str], budget: int
) -> None:
    limit = EPOCH + timedelta(hours=50)

    going = to_let_go(blobs, keep, budget, limit)

    staying = [blob for blob in blobs if blob not in going]
    assert not keep & {blob.digest for blob in going}
    assert all(blob.used_at >= limit or blob.digest in keep for blob in staying)
    assert sum(blob.size for blob in staying) <= budget or all(blob.digest in keep for blob in staying)


def test_the_least_recently_used_go_first_and_no_more_than_needed() -> None:
    listed = [
        StoredBlob(name, 10, EPOCH + timedelta(hours=hour)) for name, hour in (("a", 3), ("b", 1), ("c", 2))
    ]

    assert [blob.digest for blob in to_let_go(listed, set(), 20, EPOCH)] == ["b"]
