"""Subjects, literally, and the permissions built from them."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.ids import NodeId
from remuda.wire import subjects

NODE = NodeId("n1")


@pytest.mark.parametrize(
    ("built", "subject"),
    [
        (subjects.backend_install(NODE), "nodes.n1.backend.install"),
        (subjects.backend_upgrade(NODE), "nodes.n1.backend.upgrade"),
        (subjects.backend_list(NODE), "nodes.n1.backend.list"),
        (subjects.backend_stop(NODE), "nodes.n1.backend.stop"),
        (subjects.backend_delete(NODE), "nodes.n1.backend.delete"),
        (subjects.backend_rollback(NODE), "nodes.n1.backend.rollback"),
        (subjects.backend_cancel(NODE), "nodes.n1.backend.cancel"),
        (subjects.install_progress(NODE, "o.1"), "nodes.n1.backend.install.o-1.progress"),
        (subjects.install_progress_all(NODE), "nodes.n1.backend.install.*.progress"),
        (subjects.model_unload(NODE), "nodes.n1.model.unload"),
        (subjects.model_stop(NODE), "nodes.n1.model.stop"),
        (subjects.model_delete(NODE), "nodes.n1.model.delete"),
        (subjects.models_running(NODE), "nodes.n1.models.running"),
        (subjects.node_stop(NODE), "nodes.n1.stop"),
        (subjects.node_all(NODE), "nodes.n1.>"),
        (subjects.files_ensure(NODE), "nodes.n1.files.ensure"),
        (subjects.files_stage(NODE), "nodes.n1.files.stage"),
        (subjects.files_temp(NODE), "nodes.n1.files.temp"),
        (subjects.files_listdir(NODE), "nodes.n1.files.listdir"),
        (subjects.gallery_progress("j"), "gallery.j.progress"),
        (subjects.gallery_cancel("j"), "gallery.j.cancel"),
        (subjects.GALLERY_OPCACHE_START, "gallery.opcache.start"),
        (subjects.GALLERY_OPCACHE_END, "gallery.opcache.end"),
        (subjects.staging_progress("qwen2.5/x"), "staging.qwen2-5/x.progress"),
        (subjects.CACHE_INVALIDATE_MODELS, "cache.invalidate.models"),
        (subjects.CACHE_INVALIDATE_BACKENDS, "cache.invalidate.backends"),
        (subjects.PREFIXCACHE_OBSERVE, "prefixcache.observe"),
        (subjects.PREFIXCACHE_INVALIDATE, "prefixcache.invalidate"),
        (subjects.response_cancel("r"), "responses.r.cancel"),
        (subjects.JOBS_NEW, "jobs.new"),
        (subjects.JOBS_MCP_CI_NEW, "jobs.mcp-ci.new"),
        (subjects.AGENT_EXECUTE, "agent.execute"),
        (subjects.MCP_TOOLS_EXECUTE, "mcp.tools.execute"),
        (subjects.MCP_DISCOVERY, "mcp.discovery"),
        (subjects.job_progress("j"), "jobs.j.progress"),
        (subjects.job_result("j"), "jobs.j.result"),
        (subjects.job_cancel("j"), "jobs.j.cancel"),
        (subjects.agent_events("a", "u@x.y"), "agent.a.events.u@x-y"),
        (subjects.agent_events("a"), "agent.a.events.anonymous"),
        (subjects.agent_cancel("a"), "agent.a.cancel"),
    ],
)
def test_subject_is_spelt_as_peers_spell_it(built: str, subject: str) -> None:
    assert built == subject


def test_state_names_become_one_token() -> None:
    assert [subjects.state_delta(name) for name in subjects.STATE_NAMES] == [
        "state.finetune-jobs.delta",
        "state.quant-jobs.delta",
        "state.agent-tasks.delta",
        "state.responses-metadata.delta",
    ]


@pytest.mark.parametrize(
    ("wildcard", "subject"),
    [
        (subjects.ALL_GALLERY_PROGRESS, subjects.gallery_progress("x.y")),
        (subjects.ALL_GALLERY_CANCELS, subjects.gallery_cancel("x.y")),
        (subjects.ALL_STAGING_PROGRESS, subjects.staging_progress("x.y")),
        (subjects.ALL_RESPONSE_CANCELS, subjects.response_cancel("x.y")),
        (subjects.ALL_AGENT_CANCELS, subjects.agent_cancel("x.y")),
        (subjects.ALL_JOB_PROGRESS, subjects.job_progress("x.y")),
        (subjects.ALL_JOB_RESULTS, subjects.job_result("x.y")),
        (subjects.ALL_JOB_CANCELS, subjects.job_cancel("x.y")),
        (subjects.install_progress_all(NODE), subjects.install_progress(NODE, "x.y")),
        (subjects.ALL_INSTALL_PROGRESS, subjects.install_progress(NODE, "x.y")),
        (subjects.node_all(NODE), subjects.install_progress(NODE, "x.y")),
        (subjects.files_all(NODE), subjects.files_stage(NODE)),
    ],
)
def test_wildcard_covers_its_subjects(wildcard: str, subject: str) -> None:
    assert _covers(wildcard, subject)


def test_token_replaces_only_what_subjects_cannot_hold() -> None:
    assert subjects.token("a.b*c>d e\tf\ng/h@i:j#ü\r") == "a-b-c-d-e-f-g/h@i:j#ü\r"


def test_a_node_answers_below_its_own_id_and_a_frontend_hears_all_that_is_for_it() -> None:
    inbox = subjects.reply(NODE, "frontend-a.b", "q1")
    assert inbox == "_INBOX.n1.frontend-a-b.q1"
    assert _covers(subjects.replies_of(NODE), inbox)
    assert _covers(subjects.replies_to("frontend-a.b"), inbox)
    assert not _covers(subjects.replies_to("other"), inbox)


@pytest.mark.parametrize("subject", ["nodes.n1.backend.list", "nodes.n1.stop", "nodes.n1"])
def test_the_node_that_is_asked_is_in_the_subject(subject: str) -> None:
    assert subjects.node_of_request(subject) == NODE


@given(st.text())
def test_token_is_one_token_and_stable(text: str) -> None:
    token = subjects.token(text)

    assert not set(token) & set(".*> \t\n")
    assert len(token) == len(text)
    assert subjects.token(token) == token
    assert all(got == given or got == "-" for got, given in zip(token, text, strict=True))


def test_backend_node_hears_itself_and_publishes_progress_and_files() -> None:
    assert subjects.permissions("backend", NODE) == (
        ("nodes.n1.>",),
        ("nodes.n1.backend.install.*.progress", "nodes.n1.files.>", "_INBOX.n1.>"),
    )


def test_agent_node_has_the_agent_subjects() -> None:
    subscribe, publish = subjects.permissions("agent", NODE)

    assert set(subscribe) == {
        "agent.execute",
        "agent.*.cancel",
        "gallery.*.cancel",
        "gallery.*.progress",
        "jobs.*.cancel",
        "jobs.*.progress",
        "jobs.*.result",
        "jobs.mcp-ci.new",
        "mcp.tools.execute",
        "mcp.discovery",
        "nodes.n1.backend.stop",
        "staging.*.progress",
    }
    assert publish == ("agent.>", "jobs.>", "_INBOX.n1.>")


@given(st.sampled_from(["backend", "agent"]), st.text(min_size=1))
def test_no_node_may_touch_others_inboxes_or_other_nodes(
    node_type: Literal["backend", "agent"], node: str
) -> None:
    granted = subjects.permissions(node_type, NodeId(node))

    for subject in (*granted.subscribe, *granted.publish):
        assert not _covers(subject, f"_INBOX.{subjects.token(node)}x.y")
        assert subject in granted.publish or not _covers(subject, f"_INBOX.{subjects.token(node)}.y")
        assert not _covers(subject, f"nodes.{subjects.token(node)}x.stop")


def _covers(pattern: str, subject: str) -> bool:
    """NATS matching: `*` is one token, `>` is one or more at the end."""
    wanted, got = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, got = wanted[:-1], got[: len(wanted) - 1] if len(got) >= len(wanted) else []
    return len(wanted) == len(got) and all(w in ("*", g) for w, g in zip(wanted, got, strict=True))
