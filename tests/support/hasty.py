"""`remuda`, whose frontends retry and give up waiting sooner than usual, so that a test sees it happen."""

from datetime import timedelta
from functools import partial

from remuda.assembly import operations
from remuda.cli.main import main
from remuda.ops.model import StepPolicy

_HASTY = partial(
    StepPolicy,
    lease=timedelta(seconds=12),
    backoff_first=timedelta(seconds=1),
    backoff_most=timedelta(seconds=5),
)

if __name__ == "__main__":
    setattr(operations, "StepPolicy", _HASTY)  # noqa: B010 - to the type checker it would be a mistake.
    main()
