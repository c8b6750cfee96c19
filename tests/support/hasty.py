"""`remuda`, whose frontends retry, give up waiting and take over from others sooner than usual, so that a
test sees it happen."""

from datetime import timedelta
from functools import partial

from remuda.assembly import operations
from remuda.cli.main import main
from remuda.ops import commander
from remuda.ops.model import StepPolicy
from remuda.ops.reconciler import Pace, Reconciler

_HASTY = partial(
    StepPolicy,
    lease=timedelta(seconds=12),
    backoff_first=timedelta(seconds=1),
    backoff_most=timedelta(seconds=5),
)

_HASTY_RECONCILER = partial(Reconciler, pace=Pace(open_for=timedelta(seconds=8)))
_OWNER_SILENT = timedelta(seconds=6)

if __name__ == "__main__":
    for module, name, hasty in (
        (operations, "StepPolicy", _HASTY),
        (operations, "Reconciler", _HASTY_RECONCILER),
        (commander, "_OWNER_SILENT", _OWNER_SILENT),
    ):
        setattr(module, name, hasty)
    main()
