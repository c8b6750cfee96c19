"""What is said to workers, and what their replies come to."""

import json
from typing import Any

import pytest

from remuda.core.errors import Problem
from remuda.ops import replies
from remuda.ops.model import DoneWithNote, Kind, Source, Stage, Step, Verb
from remuda.ops.replies import call, ending_in, problem_in
from remuda.ops.steps import NOT_PROVEN
from remuda.wire.backends import BackendInstallReply, BackendRollbackReply
from remuda.wire.codec import encode
from tests.unit.ops.build import PINNED, a_step, running

OUTSIDE = Source("asked", galleries='[{"name":"g"}]', uri="oci://r.example/x:1", name="mine", alias="short")


def said(call: replies.WorkerRequest) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(call.payload)
    return body


@pytest.mark.parametrize(("kind", "verb"), [(Kind.INSTALL, Verb.INSTALL), (Kind.UPGRADE, Verb.UPGRADE)])
def test_a_retry_carries_the_full_payload_again(kind: Kind, verb: Verb) -> None:
    step = running(kind, attempt=7, source=OUTSIDE, digest=PINNED)
    assert said(replies.call(verb, step)) == {
        "backend": "mine",
        "backend_galleries": '[{"name":"g"}]',
        "uri": "oci://r.example/x:1",
        "name": "mine",
        "alias": "short",
        "op_id": "op-1",
        "attempt": 7,
        "digest": PINNED,
    }


def test_an_admins_install_names_no_model_and_no_replica() -> None:
    body = said(replies.call(Verb.INSTALL, running()))
    assert "model_id" not in body
    assert "replica_index" not in body
    assert "force" not in body


def test_an_upgrade_has_a_subject_of_its_own() -> None:
    assert replies.call(Verb.UPGRADE, running(Kind.UPGRADE)).subject == "nodes.node-1.backend.upgrade"


def test_the_fallback_is_a_forced_install_of_the_same() -> None:
    step = running(Kind.UPGRADE, source=OUTSIDE, digest=PINNED)
    call = replies.forced_install(step)
    assert call.subject == "nodes.node-1.backend.install"
    assert said(call) == said(replies.call(Verb.UPGRADE, step)) | {"force": True}


def test_a_proof_stops_exactly_the_process_it_started() -> None:
    step = running(Kind.UPGRADE, stage=Stage.PROVE)
    assert said(replies.stop_proof(step)) == {"backend": "llama-cpp#0"}


def test_a_removal_tries_each_name_once() -> None:
    step = running(Kind.REMOVE)
    calls = (replies.call(Verb.REMOVE, step), *replies.other_names(step))
    assert [said(call)["backend"] for call in calls] == ["llama-cpp", "cpu-llama-cpp"]


@pytest.mark.parametrize("verb", [Verb.INSTALL, Verb.UPGRADE, Verb.REMOVE, Verb.ROLL_BACK])
def test_success_alone_is_no_problem(verb: Verb) -> None:
    assert replies.problem_in(verb, b'{"success":true}', a_step()) is None


@pytest.mark.parametrize(
    ("verb", "code"),
    [
        (Verb.INSTALL, "install_failed"),
        (Verb.UPGRADE, "upgrade_failed"),
        (Verb.REMOVE, "remove_failed"),
        (Verb.PROVE, "proof_failed"),
        (Verb.ROLL_BACK, "rollback_failed"),
    ],
)
def test_a_reply_without_success_is_a_failure_that_names_its_reason(verb: Verb, code: str) -> None:
    problem = replies.problem_in(verb, b'{"success":false,"error":"no such image"}', a_step())
    assert problem is not None
    assert (problem.code, problem.retryable) == (code, True)
    assert problem.message.endswith(": no such image")


@pytest.mark.parametrize(
    ("code", "retryable"),
    [
        ("misconfigured", False),
        ("unauthorized", False),
        ("platform_missing", False),
        ("not_found", False),
        ("not_a_backend", False),
        ("archive_refused", False),
        ("content_refused", True),  # A few times; see the steps.
        ("forbidden", True),
    ],
)
@pytest.mark.parametrize("verb", [Verb.INSTALL, Verb.UPGRADE])
def test_a_failure_that_lasts_has_the_workers_code_and_is_not_retried_like_a_passing_one(
    verb: Verb, code: str, retryable: bool
) -> None:
    payload = encode(BackendInstallReply(error="r.example:5000 does not speak HTTPS (add it)", code=code))
    problem = problem_in(verb, payload, a_step())
    assert problem is not None
    assert (problem.code, problem.retryable) == (code, retryable)
    assert problem.message.endswith("does not speak HTTPS (add it)")


@pytest.mark.parametrize(
    ("verb", "how"),
    [
        (Verb.INSTALL, DoneWithNote("already there; nothing to do")),
        (Verb.UPGRADE, DoneWithNote("it already had this version")),
        (Verb.PROVE, None),
    ],
)
def test_an_install_that_changed_nothing_says_so(verb: Verb, how: DoneWithNote | None) -> None:
    reply = encode(BackendInstallReply(success=True, address="gpu-1:50052", unchanged=True))
    ending = ending_in(verb, reply, a_step())
    assert ending == how


def test_an_install_of_which_nothing_could_be_started_says_so() -> None:
    reply = encode(BackendInstallReply(success=True, unproven="its remuda.yaml has no `check`"))
    note = "its files are in place; not started: its remuda.yaml has no `check`"
    assert ending_in(Verb.INSTALL, reply, a_step()) == DoneWithNote(note)


def test_a_start_that_failed_after_the_install_is_told_as_that() -> None:
    words = "mine did not start: it ended with exit code 3; its last lines:\n  a: b"
    reply = encode(BackendInstallReply(error=words, code="start_failed"))
    problem = problem_in(Verb.INSTALL, reply, a_step())
    assert problem is not None
    assert (problem.code, problem.retryable) == ("start_failed", True)
    assert problem.message == f"installed, but {words}"
    stuck = encode(BackendInstallReply(error="cannot be stopped: a#0", code="backend_failed"))
    other = problem_in(Verb.INSTALL, stuck, a_step())
    assert other is not None
    assert other.code == "install_failed"


@pytest.mark.parametrize("code", ["registry_failed", "unavailable", "disk_full", "conflict", ""])
def test_a_failure_that_may_pass_is_retried(code: str) -> None:
    problem = problem_in(Verb.INSTALL, encode(BackendInstallReply(error="reset", code=code)), a_step())
    assert problem is not None
    assert (problem.code, problem.retryable) == ("install_failed", True)


@pytest.mark.parametrize(
    ("said_by_a_peer", "code"),
    [
        ("GET https://r/v2/x/manifests/1: MANIFEST_UNKNOWN: manifest unknown", "not_found"),
        ("GET https://r/token: UNAUTHORIZED: authentication required", "unauthorized"),
        ("no child with platform linux/arm64 in index r/x:1", "platform_missing"),
        ("http: server gave HTTP response to HTTPS client", "misconfigured"),
    ],
)
def test_a_peer_without_codes_is_understood_by_what_its_registry_client_says(
    said_by_a_peer: str, code: str
) -> None:
    problem = problem_in(Verb.INSTALL, encode(BackendInstallReply(error=said_by_a_peer)), a_step())
    assert problem is not None
    assert (problem.code, problem.retryable) == (code, False)
    assert problem.hint


@pytest.mark.parametrize("payload", [b"", b"x", b"[]", b'{"success":"yes"}'])
def test_a_reply_that_cannot_be_read_is_a_failure(payload: bytes) -> None:
    problem = replies.problem_in(Verb.INSTALL, payload, a_step())
    assert problem is not None
    assert "cannot be read" in problem.message


def test_only_a_missing_backend_counts_as_gone() -> None:
    assert replies.not_found(replies.problem_in(Verb.REMOVE, b'{"error":"backend not found: x"}', a_step()))
    assert not replies.not_found(replies.problem_in(Verb.REMOVE, b'{"error":"a process survived"}', a_step()))
    assert not replies.not_found(None)


@pytest.mark.parametrize("code", ["unavailable", "conflict", "disk_full", "registry_failed", "internal"])
def test_a_workers_own_trouble_says_nothing_about_a_version_to_be_proven(code: str) -> None:
    payload = encode(BackendInstallReply(error="this worker is stopping", code=code))
    problem = replies.problem_in(Verb.PROVE, payload, a_step())
    assert problem is not None
    assert (problem.code, problem.retryable) == ("install_failed", True)


@pytest.mark.parametrize("code", ["", "backend_failed", "misconfigured"])
def test_a_version_that_a_worker_could_not_start_is_to_blame(code: str) -> None:
    payload = encode(BackendInstallReply(error="it ended with exit code 1", code=code))
    problem = replies.problem_in(Verb.PROVE, payload, a_step())
    assert problem is not None
    assert problem.code == "proof_failed"


@pytest.mark.parametrize(
    "reply",
    [
        BackendRollbackReply(error="gone", code="not_found"),
        BackendRollbackReply(error="no earlier version of x is kept"),  # Of the first release.
    ],
)
def test_going_back_to_nothing_is_hopeless(reply: BackendRollbackReply) -> None:
    problem = replies.problem_in(Verb.ROLL_BACK, encode(reply), a_step())
    assert problem is not None
    assert not problem.retryable


def test_a_failed_fallback_says_that_it_was_one() -> None:
    assert "older worker" in replies.in_legacy_words(Problem("install_failed", "no room")).message


def test_cancelling_names_the_operation() -> None:
    step: Step = running()
    assert said(replies.call(Verb.CANCEL, step)) == {"op_id": "op-1"}


def test_success_with_other_bytes_than_were_pinned_is_no_success() -> None:
    reply = b'{"success":true,"digest":"sha256:bbb"}'
    problem = replies.problem_in(Verb.UPGRADE, reply, a_step(Kind.UPGRADE, digest=PINNED))
    assert problem is not None
    assert (problem.code, problem.retryable) == ("wrong_digest", False)
    assert replies.problem_in(Verb.UPGRADE, reply, a_step(Kind.UPGRADE)) is None, "nothing was pinned"


def test_a_worker_that_tells_no_digest_is_believed() -> None:
    assert replies.problem_in(Verb.INSTALL, b'{"success":true}', a_step(digest=PINNED)) is None


def test_going_back_names_the_bytes_to_go_back_from() -> None:
    call = replies.call(Verb.ROLL_BACK, a_step(Kind.UPGRADE, digest=PINNED))
    assert PINNED.encode() in call.payload


def test_proof_for_which_nothing_was_started_proves_nothing() -> None:
    started = BackendInstallReply(success=True, address="gpu-1:50052", digest=PINNED)
    nothing = BackendInstallReply(success=True, digest=PINNED, unproven="there is nothing to start it with")
    older = BackendInstallReply(success=True, digest=PINNED)
    untold = BackendInstallReply(success=True)
    step = running(Kind.UPGRADE, stage=Stage.PROVE)
    found = [problem_in(Verb.PROVE, encode(reply), step) for reply in (started, nothing, older, untold)]
    assert [problem and problem.code for problem in found] == [None, NOT_PROVEN, NOT_PROVEN, NOT_PROVEN]
    assert found[1] is not None
    assert found[1].message == "not proven: there is nothing to start it with"
    assert json.loads(call(Verb.PROVE, step).payload)["prove"] is True
