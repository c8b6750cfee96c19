"""The table that this frontend routes by now."""

import anyio

from remuda.router.table import Table


class Tables:
    """The table in force. `changed` is set by the next one: take it before looking, and none is missed."""

    def __init__(self) -> None:
        self.now = Table()
        self.changed = anyio.Event()

    def replace(self, table: Table) -> None:
        self.now = table
        self.changed.set()
        self.changed = anyio.Event()
