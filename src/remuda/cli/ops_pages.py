"""Operations as a frontend lists them: page by page, as many as were asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from remuda.cli.client import AdminClient
from remuda.wire.operations import OpViews

_PAGE_MAX: Final = 1000  # What a frontend gives at once.


@dataclass(frozen=True, slots=True)
class ListedOperations:
    views: OpViews  # Its `next`: there are more.
    at: datetime | None  # By the frontend's clock, when the last page was made.


def read_pages(client: AdminClient, query: Mapping[str, str], limit: int | None) -> ListedOperations:
    """The newest of these; without a limit all of them. What is asked for meanwhile is newer than the first
    page, and shifts nothing."""
    got = OpViews()
    place: dict[str, str] = {}
    while True:
        wanted = _PAGE_MAX if limit is None else min(limit - len(got.operations), _PAGE_MAX)
        answer = client.get("api", "ops", **query, **place, limit=str(wanted))
        page = answer.read(OpViews)
        got = OpViews(operations=(*got.operations, *page.operations), next=page.next)
        if page.next is None or len(got.operations) == limit:
            return ListedOperations(got, answer.date)
        place = {"before": str(page.next)}
