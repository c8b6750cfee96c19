"""Settings as people see them; secrets only as set or not set. Pure."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from remuda.cli.options import unknown_variables
from remuda.cli.render import UNKNOWN, Column, table_of
from remuda.core.settings import SettingRow


def table(found: Sequence[SettingRow]) -> Table:
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
