"""`remuda`, whose frontends retry and give up waiting sooner than usual, so that a test sees it happen."""

from datetime import timedelta
from functools import partial

from remuda.assembly import operations
from remuda.cli.main import main
from remuda.ops.model import Patience

_HASTY = partial(
    Patience,
    lease=timedelta(seconds=12),
    backoff_first=timedelta(seconds=1),
    backoff_most=timedelta(seconds=5),
)

if __name__ == "__main__":
    setattr(operations, "Patience", _HASTY)  # noqa: B010 - to the type checker it would be a mistake.
    main()
