"""How far a load is, in the contract's words. Pure."""

from remuda.ops.model import State
from remuda.ops.ports import Progress, View
from remuda.router.ports import LoadStatus
from remuda.scheduler.model import Replica, ReplicaState

_INSTALL_SHARE = 80.0  # Of the whole, where the backend has to be brought first.


def status_of(replica: Replica, view: View | None) -> LoadStatus:
    """`view` is the operation's, with live progress laid over it; None while it is just being made."""
    model = replica.key.model
    if view is None or not view.steps:
        return LoadStatus(model)
    step = view.steps[0]
    if step.state is not State.RUNNING:
        state = "failed" if step.state is State.FAILED else "pending"
        return LoadStatus(model, state, step.node_name)
    heard = next((one for _, one in view.progress if one.attempt == step.attempt), Progress(step.attempt))
    if replica.state is ReplicaState.LOADING:
        return LoadStatus(model, "loading", step.node_name, _INSTALL_SHARE)
    return LoadStatus(
        model,
        "installing",
        step.node_name,
        progress=round(heard.fraction * _INSTALL_SHARE, 1),
        bytes_sent=heard.current_bytes,
        total_bytes=heard.total_bytes,
        file_index=1 if heard.total_bytes else 0,
        total_files=1 if heard.total_bytes else 0,
    )
