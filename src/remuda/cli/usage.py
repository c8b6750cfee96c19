"""`remuda usage`: what keys have taken of models and nodes."""

import re
from collections.abc import Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

import click

from remuda.cli.commands import client_command, connect, examples
from remuda.cli.invocation import ClientOptions

if TYPE_CHECKING:
    from remuda.cli.render import Column
    from remuda.wire.usage import UsageCounts, UsageView

_SPAN: Final = re.compile(r"(\d{1,4})d")
_FIELDS: Final = ("day", "key", "model", "node")


class Day(click.ParamType[str]):
    """A day as the API has it, from a date or from how many days ago it was."""

    name = "DAY"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip().lower()
        if text == "today" or _SPAN.fullmatch(text):
            return _days_ago(int(text.removesuffix("d") if text != "today" else 0))
        try:
            return date.fromisoformat(text).isoformat()
        except ValueError:
            self.fail(f"{str(value)!r} is not a day such as 2026-03-01, 7d or today.", param, ctx)


def _days_ago(days: int) -> str:
    from remuda.core.clock import SystemClock

    return (SystemClock().now() - timedelta(days=days)).date().isoformat()


@click.command(
    "usage",
    short_help="Show what keys have taken.",
    epilog=examples(
        "remuda usage",
        "remuda usage --since 7d --by day,key",
        "remuda usage --key website --by model,node",
        "remuda usage --since 2026-03-01 --until 2026-03-31 --csv > march.csv",
    ),
)
@click.option("--since", type=Day(), help="The first day (UTC): a date, 7d or today. 30 days unless given.")
@click.option("--until", type=Day(), help="The last day. Today unless given.")
@click.option(
    "--by",
    default="key,model",
    show_default=True,
    metavar="FIELDS",
    help="What to group by: some of day, key, model and node.",
)
@click.option("--key", default="", metavar="NAME|ID", help="Only of this key.")
@click.option("--model", default="", help="Only of this model.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, for spreadsheets.")
@client_command
def command(
    options: ClientOptions, since: str | None, until: str | None, by: str, key: str, model: str, as_csv: bool
) -> None:
    """Show requests, tokens and costs of keys, models and nodes, by days of UTC."""
    if as_csv and options.as_json:
        raise click.UsageError("--csv and --json exclude each other")
    asked = {"since": since or "", "until": until or "", "by": by, "key": key, "model": model}
    asked["format"] = "csv" if as_csv else "json"
    with connect(options) as client:
        answer = client.get("api", "usage", **asked)
    if as_csv or options.as_json:
        click.echo(answer.body.decode().rstrip("\n"))
        return
    from remuda.cli.render import console, fitting, show
    from remuda.wire.usage import UsageView

    view = answer.read(UsageView)
    if not view.usage or not view.total.requests:
        click.echo(f"nothing was used from {view.since} to {view.until}")
        return
    output = console()
    show(output, fitting(_columns(view), output))


def _columns(view: "UsageView") -> list["Column"]:
    from remuda.cli.render import Column

    first = view.usage[0]
    told = [name for name in _FIELDS if getattr(first, name) is not None]
    columns = [
        Column(name.upper(), [*(getattr(item, name) or "-" for item in view.usage), _total(name, told)])
        for name in told
    ]
    counted: Sequence[UsageCounts] = [*view.usage, view.total]
    columns += [
        Column("REQUESTS", [f"{one.requests:,}" for one in counted], right=True),
        Column("FAILED", [f"{one.failed:,}" for one in counted], needed=2, right=True),
        Column("TOKENS READ", [f"{one.prompt_tokens:,}" for one in counted], needed=1, right=True),
        Column("WRITTEN", [f"{one.completion_tokens:,}" for one in counted], needed=1, right=True),
    ]
    if view.total.cost:
        columns.append(Column("COST", [one.cost or "-" for one in counted], right=True))
    return columns


def _total(name: str, told: Sequence[str]) -> str:
    return "total" if name == told[0] else ""
