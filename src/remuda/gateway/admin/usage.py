"""What keys have taken of models and nodes, by the day: as JSON, or as CSV for spreadsheets."""

import csv
import io
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query, Response

from remuda.accounts.usage import KeyUsage, UsageField, UsageQuery, UsageRow, in_all
from remuda.core import limits
from remuda.core.errors import Invalid, NotFound
from remuda.core.hints import did_you_mean
from remuda.core.prices import exact
from remuda.gateway.guards import require_admin
from remuda.gateway.messages import KNOWN_FILTERS, answer, gives, gives_raw
from remuda.gateway.services import Services, Svc
from remuda.wire.usage import UsageCounts, UsageItem, UsageView

routes = APIRouter(prefix="/api/usage", tags=["keys"], dependencies=[Depends(require_admin)])
_USUALLY: Final = timedelta(days=29)
_NAMES: Final = tuple(field.value for field in UsageField)
_CSV: Final = "text/csv; charset=utf-8"
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


@routes.get(
    "",
    responses=gives_raw("text/csv", 400, 401, 404) | gives(UsageView, 400, 401, 404),
    dependencies=[KNOWN_FILTERS],
)
async def read_usage(
    svc: Svc,
    since: Annotated[str, Query()] = "",
    until: Annotated[str, Query()] = "",
    by: Annotated[str, Query()] = "key,model",
    key: Annotated[str, Query()] = "",
    model: Annotated[str, Query()] = "",
    format: Annotated[Literal["json", "csv"], Query()] = "json",
) -> Response:
    """Requests, tokens and costs: of the last 30 days unless days are named, grouped by any of day, key,
    model and node."""
    query = _query(since, until, by, svc)
    query = UsageQuery(query.since, query.until, query.by, key, model)
    await svc.metering.usage.write()
    rows = await svc.metering.used.rows(query)
    if len(rows) > limits.USAGE_ROWS_MAX:
        raise Invalid(
            f"these are more than {limits.USAGE_ROWS_MAX} rows",
            hint="ask for fewer days, for one key or model, or group by less (by=)",
        )
    _require_known(key, rows, svc)
    if format == "csv":
        return Response(_table(query, rows), media_type=_CSV)
    items = tuple(_item(row) for row in rows)
    total = UsageCounts(**_counts(in_all(rows)))
    return answer(
        UsageView(since=query.since.isoformat(), until=query.until.isoformat(), usage=items, total=total)
    )


def _require_known(key: str, rows: Sequence[UsageRow], svc: Services) -> None:
    """NotFound for a key that does not exist, and never took anything of these days under this name."""
    listed = svc.keyring.listed()
    if not key or in_all(rows).requests or any(key in (one.name, one.id) for one in listed):
        return
    hint = did_you_mean(key, [one.name for one in listed], "remuda keys lists those there are")
    raise NotFound(f"there is no key {key[:100]!r}, and nothing was used by one on these days", hint=hint)


def _query(since: str, until: str, by: str, svc: Services) -> UsageQuery:
    last = _day("until", until) or svc.keyring.now().date()
    first = _day("since", since) or last - _USUALLY
    if first > last:
        raise Invalid(f"since: {first} is after {last}", hint="name an earlier day")
    return UsageQuery(first, last, _fields(by))


def _day(name: str, text: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise Invalid(f"{name}: {text[:40]!r} is not a day such as 2026-03-01", param=name) from None


def _fields(by: str) -> tuple[UsageField, ...]:
    names = [name.strip() for name in by.split(",") if name.strip()]
    for name in names:
        if name not in _NAMES:
            raise Invalid(
                f"by: usage cannot be grouped by {name[:40]!r}",
                hint=f"name some of {', '.join(_NAMES)}",
            )
    return tuple(field for field in UsageField if field.value in names)


def _counts(used: KeyUsage) -> dict[str, Any]:
    return {
        "requests": used.requests,
        "failed": used.failed,
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "cost": exact(used.cost) if used.cost else "",
    }


def _item(row: UsageRow) -> UsageItem:
    return UsageItem(
        day=None if row.day is None else row.day.isoformat(),
        key_id=row.key,
        key=None if row.key is None else row.key_name or row.key,
        model=row.model,
        node=row.node,
        **_counts(row.usage),
    )


def _table(query: UsageQuery, rows: Sequence[UsageRow]) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([*query.by, *_counts(KeyUsage())])
    for row in rows:
        item = _item(row).model_dump()
        writer.writerow([*(_text(item[field] or "") for field in query.by), *_counts(row.usage).values()])
    return written.getvalue()


def _text(value: str) -> str:
    """A name that begins like a formula is not to be run as one by a spreadsheet."""
    return f"'{value}" if value.startswith(_FORMULA) else value
