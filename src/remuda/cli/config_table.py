"""Settings as people see them; secrets only as set or not set. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from pydantic import SecretStr
from rich.table import Table

from remuda.cli.options import unknown_variables
from remuda.cli.render import UNKNOWN, Column, table_of
from remuda.core import durations
from remuda.core.settings import ResolvedSettings, Settings, described

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, slots=True)
class Row:
    setting: str
    value: str
    origin: str
    note: str


def rows(resolved: ResolvedSettings[S]) -> list[Row]:
    return [
        Row(
            item.field,
            value_text(getattr(resolved.values, item.field), secret=item.secret),
            resolved.origins[item.field],
            f"no effect yet: for {item.setting.no_effect_yet}" if item.setting.no_effect_yet else "",
        )
        for item in described(type(resolved.values))
    ]


def value_text(value: object, *, secret: bool) -> str:
    """A value as it would be typed."""
    match value:
        case _ if secret:
            return "set" if isinstance(value, SecretStr) and value.get_secret_value() else "not set"
        case None | "":
            return ""
        case bool():
            return "true" if value else "false"
        case timedelta():
            return durations.render(value)
        case Mapping():
            return ",".join(f"{key}={item}" for key, item in value.items())
        case tuple():
            return ",".join(str(item) for item in value)
        case _:
            return str(value)


def table(found: Sequence[Row]) -> Table:
    return table_of(
        [
            Column("SETTING", [row.setting for row in found]),
            Column("VALUE", [row.value or UNKNOWN for row in found]),
            Column("FROM", [row.origin for row in found]),
            Column("NOTE", [row.note for row in found]),
        ]
    )


def warnings(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like ours and are read by nothing."""
    return [f"{name} is not a setting; {hint}" for name, hint in unknown_variables(environ).items()]
