"""The request to a worker for each verb, and what its reply means. Pure.

Every request is whole: a retry next week carries the same source, pin and names as the first one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from remuda.core.errors import Problem, RemudaError
from remuda.core.ids import NodeId
from remuda.ops.failures import classified
from remuda.ops.model import DoneWithNote, Ending, ModelSpec, OpId, Step, Verb
from remuda.ops.reasons import StepCause, because
from remuda.ops.steps import NOT_PROVEN, PROOF_FAILED
from remuda.wire import subjects
from remuda.wire.backends import (
    BackendCancel,
    BackendDelete,
    BackendDeleteReply,
    BackendInstall,
    BackendInstallReply,
    BackendRollback,
    BackendRollbackReply,
    BackendStop,
    BackendUpgrade,
    BackendUpgradeReply,
)
from remuda.wire.codec import decode, encode
from remuda.wire.models import ModelDelete, ModelDeleteReply
from remuda.wire.process_keys import ProcessKey

_NOT_FOUND: Final = "backend not found"
NOTHING_THERE: Final = "not_found"
_FAILED: Final = {
    Verb.INSTALL: Problem("install_failed", "the install failed", retryable=True),
    Verb.UPGRADE: Problem("upgrade_failed", "the upgrade failed", retryable=True),
    Verb.REMOVE: Problem("remove_failed", "the removal failed", retryable=True),
    Verb.PROVE: Problem(PROOF_FAILED, "the new version does not start", retryable=True),
    Verb.ROLL_BACK: Problem("rollback_failed", "the rollback failed", retryable=True),
}
# Codes of workers' errors that say nothing about the version that was to be proven.
_WORKER_TROUBLE: Final = frozenset(
    {"unavailable", "conflict", "disk_full", "registry_failed", "too_large", "internal"}
)
_NOT_TRIED: Final = Problem("install_failed", "the new version could not be tried", retryable=True)
_NOTHING_STARTED: Final = Problem(
    NOT_PROVEN,
    "not proven",
    hint="run a model with it on that node first, or upgrade without --rolling",
)
_OLDER_WORKER: Final = "its worker is too old to start it without a model"
_UNTOLD: Final = "its worker does not say that it has started it"
_NOTHING_BEFORE: Final = "no earlier version"
_REPLIES: Final[Mapping[Verb, type[BackendInstallReply] | type[BackendUpgradeReply]]] = {
    Verb.INSTALL: BackendInstallReply,
    Verb.UPGRADE: BackendUpgradeReply,
    Verb.REMOVE: BackendDeleteReply,
    Verb.PROVE: BackendInstallReply,
    Verb.ROLL_BACK: BackendRollbackReply,
}
_UNCHANGED: Final = {
    Verb.INSTALL: str(because(StepCause.NOTHING_TO_DO)),
    Verb.UPGRADE: str(because(StepCause.SAME_VERSION)),
}
UNREACHABLE: Final = Problem(
    "no_responders",
    "its worker does not answer on the bus",
    hint="check that the worker runs; its log says more about its connection to the bus",
    retryable=True,
)


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    subject: str
    payload: bytes


def call(verb: Verb, step: Step) -> WorkerRequest:
    """What to say; for REMOVE the first thing, and `other_names` follow."""
    match verb:
        case Verb.INSTALL:
            return _install(step, force=step.goal.replaces)
        case Verb.PROVE:  # To prove is to start it: free where it is installed.
            return _install(step, force=False, prove=True)
        case Verb.UPGRADE:
            return _upgrade(step)
        case Verb.REMOVE:
            return _delete(step, step.source.backend)
        case Verb.ROLL_BACK:
            return _rollback(step)
        case Verb.CANCEL:
            return cancel(step.op, step.node)
        case Verb.REMOVE_MODEL:
            return _model_delete(step)
        case Verb.LOAD | Verb.UNLOAD | Verb.INSTALL_MODEL:
            raise AssertionError("frontends carry these out themselves")


def forced_install(step: Step) -> WorkerRequest:
    """An upgrade, to workers that do not know the word."""
    return _install(step, force=True)


def other_names(step: Step) -> tuple[WorkerRequest, ...]:
    """The rest of a removal: a meta backend may be on the disk in several builds, or under a build's name
    alone."""
    names = dict.fromkeys(name for name in step.goal.names if name != step.source.backend)
    return tuple(_delete(step, name) for name in names)


def cancel(op: OpId, node: NodeId) -> WorkerRequest:
    return WorkerRequest(subjects.backend_cancel(node), encode(BackendCancel(op_id=op)))


def stop_proof(step: Step) -> WorkerRequest:
    """End the one process that the proof has started, and no other."""
    key = ProcessKey(_asked_name(step), 0)
    return WorkerRequest(subjects.backend_stop(step.node), encode(BackendStop(backend=str(key))))


def problem_in(verb: Verb, payload: bytes, step: Step) -> Problem | None:
    """How it failed, as the reply says; None: it did what it was asked, with the bytes that were meant."""
    failed = _FAILED[verb]
    try:
        reply = decode(_REPLIES[verb], payload)
    except RemudaError as error:
        unread = _NOT_TRIED if verb is Verb.PROVE else failed
        return replace(unread, message=f"{unread.message}: its reply cannot be read: {error.message}")
    if verb is Verb.PROVE and reply.success:
        assert isinstance(reply, BackendInstallReply), "a proof is an install"
        return _unproven(reply)
    if reply.success:
        return _other_bytes(step, reply.digest) if verb in (Verb.INSTALL, Verb.UPGRADE) else None
    if verb is Verb.PROVE and reply.code in _WORKER_TROUBLE:
        failed = _NOT_TRIED
    if verb is Verb.ROLL_BACK and _nothing_to_return_to(reply):
        failed = replace(failed, retryable=False)
    if verb is Verb.REMOVE and _NOT_FOUND in reply.error:  # LocalAI's words, which are all that it sends.
        failed = replace(failed, code=NOTHING_THERE)
    failed = replace(failed, message=f"{failed.message}: {reply.error or 'the worker gave no reason'}")
    return classified(failed, reply.code, reply.error) if verb in (Verb.INSTALL, Verb.UPGRADE) else failed


def ending_in(verb: Verb, payload: bytes, step: Step) -> Ending:
    """As `problem_in`; and what there is to say of an install or upgrade that succeeded."""
    problem = problem_in(verb, payload, step)
    how = _UNCHANGED.get(verb)
    if problem is not None or how is None:
        return problem
    reply = decode(_REPLIES[verb], payload)
    if isinstance(reply, BackendInstallReply) and reply.unproven:
        return DoneWithNote(f"its files are in place; not started: {reply.unproven}")
    return DoneWithNote(how) if reply.unchanged else None


def was_installed(payload: bytes, ending: Ending) -> bool:
    """It was not there before."""
    return not isinstance(ending, Problem) and not decode(BackendInstallReply, payload).unchanged


def _unproven(reply: BackendInstallReply) -> Problem | None:
    """What was started listens somewhere: without an address it is unknown. Workers of the
    first release start nothing for a server that needs a model, and do not say so: only they tell a digest
    and no address. LocalAI's start every backend, and tell where."""
    nothing_started = "" if reply.address else _OLDER_WORKER if reply.digest else _UNTOLD
    unproven = reply.unproven or nothing_started
    return replace(_NOTHING_STARTED, message=f"not proven: {unproven}") if unproven else None


def _nothing_to_return_to(reply: BackendInstallReply | BackendUpgradeReply) -> bool:
    """Workers of the first release send no code."""
    return reply.code == "not_found" or _NOTHING_BEFORE in reply.error or _NOT_FOUND in reply.error


def stopped_in(payload: bytes) -> tuple[str, ...]:
    """The processes that the worker stopped on its way, also if it failed then; none if it does not tell."""
    try:
        reply = decode(BackendUpgradeReply, payload)  # Of which all replies of workers have the fields.
    except RemudaError:
        return ()
    return reply.stopped_process_keys if reply.reports_stopped_processes else ()


def _other_bytes(step: Step, digest: str) -> Problem | None:
    """A worker that does not tell is believed: it may be older, or have no digest to tell."""
    pinned = step.goal.digest
    if not pinned or digest in ("", pinned):
        return None
    return Problem(
        "wrong_digest",
        f"the worker has {digest}, not {pinned} as was meant",
        hint="its tag may have moved: start a new operation",
    )


def not_found(problem: Problem | None) -> bool:
    """A removal that found nothing: what was wanted gone is not there under this name."""
    return problem is not None and problem.code == NOTHING_THERE


def in_legacy_words(problem: Problem) -> Problem:
    return replace(problem, message=f"{problem.message} (by a forced install, for an older worker)")


def _asked_name(step: Step) -> str:
    """Workers look for the requested name after the install: what comes from outside the galleries has to be
    asked for by the name it is given."""
    source = step.source
    return source.name if source.uri and source.name else source.backend


def _install(step: Step, *, force: bool, prove: bool = False) -> WorkerRequest:
    source = step.source
    message = BackendInstall(
        backend=_asked_name(step),
        backend_galleries=source.galleries,
        uri=source.uri,
        name=source.name,
        alias=source.alias,
        force=force,
        op_id=step.op,
        attempt=step.attempt,
        digest=step.goal.digest,
        prove=prove,
    )
    return WorkerRequest(subjects.backend_install(step.node), encode(message))


def _upgrade(step: Step) -> WorkerRequest:
    source = step.source
    message = BackendUpgrade(
        backend=_asked_name(step),
        backend_galleries=source.galleries,
        uri=source.uri,
        name=source.name,
        alias=source.alias,
        op_id=step.op,
        attempt=step.attempt,
        digest=step.goal.digest,
        force=step.goal.replaces,
    )
    return WorkerRequest(subjects.backend_upgrade(step.node), encode(message))


def _delete(step: Step, name: str) -> WorkerRequest:
    message = BackendDelete(backend=name, op_id=step.op, attempt=step.attempt)
    return WorkerRequest(subjects.backend_delete(step.node), encode(message))


def _rollback(step: Step) -> WorkerRequest:
    message = BackendRollback(
        backend=_asked_name(step), op_id=step.op, attempt=step.attempt, from_digest=step.goal.digest
    )
    return WorkerRequest(subjects.backend_rollback(step.node), encode(message))


# A model's files on a node.


def _model_delete(step: Step) -> WorkerRequest:
    spec = step.source.model or ModelSpec()
    request = ModelDelete(model_name=step.source.name, files=spec.files, any_files=spec.any_files)
    return WorkerRequest(subjects.model_delete(step.node), encode(request))


def delete_ending(payload: bytes, model: str) -> Problem | DoneWithNote | None:
    """Why the files are still there; None: they are not. LocalAI's workers do not look where they keep what
    came from object storage."""
    try:
        reply = decode(ModelDeleteReply, payload)
    except RemudaError as error:
        return replace(_NOT_DELETED, message=f"its worker gave no sensible answer: {error.message}")
    if not reply.success:
        return replace(_NOT_DELETED, message=reply.error or _NOT_DELETED.message)
    if reply.by_path:
        return None
    return DoneWithNote(
        f"what its models folder has under the name {model} was removed; LocalAI's workers keep what they "
        "took from object storage in their cache, where only a person can remove it"
    )


_NOT_DELETED: Final = Problem("remove_failed", "the files were not removed", retryable=True)
