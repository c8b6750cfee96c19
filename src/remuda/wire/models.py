"""Models on a worker: unload, stop, delete, and which replicas run."""

from typing import Annotated

from remuda.wire.codec import OMIT_EMPTY, Count, Many, Message, OptionalMessage


class ModelUnload(Message):
    """Frontend to worker: free this model's memory. The process stays."""

    model_name: str
    address: Annotated[str, OMIT_EMPTY] = ""


class ModelUnloadReply(Message):
    """Worker to frontend: asked to free, which need not mean freed."""

    success: bool = False
    error: Annotated[str, OMIT_EMPTY] = ""


class ModelStop(Message):
    """Frontend to worker: stop this one process, if it is still the one meant."""

    model_name: str
    process_key: str
    expected_address: str  # Guards against stopping the successor of the process that was meant.
    force: Annotated[bool, OMIT_EMPTY] = False
    config_revision: Annotated[str, OMIT_EMPTY] = ""
    # Ours.
    instance: Annotated[str, OMIT_EMPTY] = ""  # The very process that is meant; then no address is needed.


class ModelStopReply(Message):
    """Worker to frontend: what was found and what became of it."""

    matched: bool = False
    freed: bool = False
    terminated: bool = False  # Also when there was no such process.
    process_key: str = ""
    address: Annotated[str, OMIT_EMPTY] = ""
    error: Annotated[str, OMIT_EMPTY] = ""


class ModelDelete(Message):
    """Frontend to worker: remove this model's files. Nothing there is as good as removed."""

    model_name: str
    # Ours: where they are, below the folder of models. Without any: what is called like the model.
    files: Annotated[Many[str], OMIT_EMPTY] = ()
    any_files: Annotated[bool, OMIT_EMPTY] = False  # Also those that the fleet has not brought there.


class ModelDeleteReply(Message):
    """Worker to frontend: removed, or why not."""

    success: bool = False
    error: Annotated[str, OMIT_EMPTY] = ""
    by_path: Annotated[bool, OMIT_EMPTY] = False  # Ours: the files that were named, and no others.


class ModelsRunning(OptionalMessage):
    """Frontend to worker: which replicas run?"""


class RunningModel(Message):
    """One replica's process."""

    model_id: str = ""
    replica_index: Count = 0
    address: Annotated[str, OMIT_EMPTY] = ""
    # Ours.
    instance: Annotated[str, OMIT_EMPTY] = ""


class ModelsRunningReply(Message):
    """Worker to frontend: the live replicas. With an error the list says nothing."""

    models: Many[RunningModel] = ()
    error: Annotated[str, OMIT_EMPTY] = ""
