"""Every NATS subject, built from ids. Nothing else in the code base spells a subject.

Variable parts go through `token`; the ALL_* forms are what a frontend subscribes to.
"""

from typing import Final, Literal, NamedTuple

from remuda.core.ids import NodeId

_UNSAFE: Final = str.maketrans(dict.fromkeys(".*> \t\n", "-"))


def token(text: str) -> str:
    """Text as one subject token. Different texts may give one token: keep ids unique in this form."""
    return text.translate(_UNSAFE)


def _node(node: NodeId, verb: str) -> str:
    return f"nodes.{token(node)}.{verb}"


# Frontend to one worker. Request and reply, unless said otherwise.


def node_all(node: NodeId) -> str:
    """All that is said to or by one node."""
    return _node(node, ">")


def backend_install(node: NodeId) -> str:
    """Have a backend installed, and running if a model is named."""
    return _node(node, "backend.install")


def backend_upgrade(node: NodeId) -> str:
    """Stop a backend's processes and install it anew. Older workers have no such subject."""
    return _node(node, "backend.upgrade")


def backend_list(node: NodeId) -> str:
    """Which backends are installed."""
    return _node(node, "backend.list")


def backend_stop(node: NodeId) -> str:
    """Stop processes, of one backend or model or all. Published, no reply."""
    return _node(node, "backend.stop")


def backend_delete(node: NodeId) -> str:
    """Stop a backend's processes and remove its files."""
    return _node(node, "backend.delete")


def backend_rollback(node: NodeId) -> str:
    """Stop a backend's processes and return to the version before. Ours: LocalAI's workers do not listen."""
    return _node(node, "backend.rollback")


def backend_cancel(node: NodeId) -> str:
    """Give up an install or upgrade that is at work. Ours: LocalAI's workers do not listen."""
    return _node(node, "backend.cancel")


def model_unload(node: NodeId) -> str:
    """Free a model's memory; its process stays."""
    return _node(node, "model.unload")


def model_stop(node: NodeId) -> str:
    """Stop exactly one replica's process."""
    return _node(node, "model.stop")


def model_delete(node: NodeId) -> str:
    """Remove a model's files."""
    return _node(node, "model.delete")


def models_running(node: NodeId) -> str:
    """Which replicas run."""
    return _node(node, "models.running")


def node_stop(node: NodeId) -> str:
    """Shut the worker down in good order. Published, no reply; the payload says nothing."""
    return _node(node, "stop")


def files_ensure(node: NodeId) -> str:
    """Fetch an object of the shared storage into the worker's cache."""
    return _node(node, "files.ensure")


def files_stage(node: NodeId) -> str:
    """Upload a worker's file to the shared storage."""
    return _node(node, "files.stage")


def files_temp(node: NodeId) -> str:
    """Make an empty temporary file on the worker."""
    return _node(node, "files.temp")


def files_listdir(node: NodeId) -> str:
    """List a directory of the worker."""
    return _node(node, "files.listdir")


def files_fetch(node: NodeId) -> str:
    """Have a model's files in the folder of models: the worker fetches what it lacks.
    Ours: LocalAI's workers do not listen, nor do older ones of ours."""
    return _node(node, "files.fetch")


def files_drop(node: NodeId) -> str:
    """Remove model files that the worker has fetched and that nothing has needed since. Ours."""
    return _node(node, "files.drop")


def files_all(node: NodeId) -> str:
    """All file subjects of one node."""
    return _node(node, "files.>")


# One worker to the frontends.


def reply(node: NodeId, asker: str, question: str) -> str:
    """Where a node answers one question of one frontend. It outlives both their connections."""
    return f"_INBOX.{token(node)}.{token(asker)}.{token(question)}"


def replies_of(node: NodeId) -> str:
    """All that a node may answer."""
    return f"_INBOX.{token(node)}.>"


def replies_to(asker: str) -> str:
    """All answers to one frontend."""
    return f"_INBOX.*.{token(asker)}.*"


def node_of_request(subject: str) -> NodeId:
    """The node that a request is for; for any other subject its first token, which names no node."""
    first, _, rest = subject.partition(".")
    return NodeId(rest.partition(".")[0] or first if first == "nodes" else first)


def install_progress(node: NodeId, op_id: str) -> str:
    """How far an install or upgrade is. Lossy: the reply to the request is the truth."""
    return _node(node, f"backend.install.{token(op_id)}.progress")


def install_progress_all(node: NodeId) -> str:
    """The progress of every operation on one node."""
    return _node(node, "backend.install.*.progress")


ALL_INSTALL_PROGRESS: Final = "nodes.*.backend.install.*.progress"
"""The progress of every operation on every node."""


# Frontend to all frontends; the sender hears itself and must not answer. Those not marked as ours are
# reserved: LocalAI's frontends use them among themselves, and Remuda neither publishes nor hears them.

ALL_GALLERY_PROGRESS: Final = "gallery.*.progress"
ALL_GALLERY_CANCELS: Final = "gallery.*.cancel"
GALLERY_OPCACHE_START: Final = "gallery.opcache.start"
"""A job began for a gallery element."""
GALLERY_OPCACHE_END: Final = "gallery.opcache.end"
"""That job ended."""
ALL_STAGING_PROGRESS: Final = "staging.*.progress"
CACHE_INVALIDATE_MODELS: Final = "cache.invalidate.models"
"""Model configurations changed: read them again."""
CACHE_INVALIDATE_BACKENDS: Final = "cache.invalidate.backends"
"""Installed backends changed: ask again."""
PREFIXCACHE_OBSERVE: Final = "prefixcache.observe"
"""A replica has just seen this prompt prefix."""
PREFIXCACHE_INVALIDATE: Final = "prefixcache.invalidate"
"""A replica's prefixes are gone."""
ALL_RESPONSE_CANCELS: Final = "responses.*.cancel"
OPS_CHANGED: Final = "ops.changed"
"""Operations changed: look at the store. Ours; it carries no more than who says so."""


REQUESTS_HELD: Final = "frontends.requests"
"""What one frontend has in flight, about once a second. Ours; a lost one costs a second."""
UPGRADES_CHECKED: Final = "frontends.upgrades"
"""What one frontend learned of the tags of installed images. Ours; a lost one costs a check."""
FILES_HELD: Final = "frontends.files"
"""Which files of models one frontend has, and where workers reach it. Ours; a lost one costs seconds."""
HISTORY_STEPS: Final = "frontends.history.steps"
"""What one frontend knows of ten seconds that have just passed, for charts. Ours; a lost one is asked for."""
HISTORY_WANTED: Final = "frontends.history.wanted"
"""One frontend asks another for what it knows of the last hour. Ours; a lost one is repeated."""
HISTORY_PARTS: Final = "frontends.history.parts"
"""The answer, in parts of at most some 200 KiB. Ours; after a lost one it is asked for again."""
RESPONSE_EVENTS_WANTED: Final = "frontends.response_events.wanted"
"""One frontend asks all others for events of a response made in the background. Ours; it asks again."""
RESPONSE_EVENTS_TOLD: Final = "frontends.response_events.told"
"""The answer of the one that has them, at most some 200 KiB. Ours."""
DECISIONS_WANTED: Final = "frontends.decisions.wanted"
"""One frontend asks all others why a request went where it did. Ours; after a lost one it is asked again."""
DECISIONS_TOLD: Final = "frontends.decisions.told"
"""The answer of each of them. Ours."""
PROMPTS_SEEN: Final = "frontends.prompts"
"""Which replicas have the beginnings of which prompts in their caches, as hashes. Ours; only hints."""
REPLICAS_CHANGED: Final = "frontends.replicas"
"""Replicas or models changed: look at the store. Ours."""


def gallery_progress(job_id: str) -> str:
    """The whole status of one gallery job."""
    return f"gallery.{token(job_id)}.progress"


def gallery_cancel(job_id: str) -> str:
    """Cancel or pause one gallery job, whichever frontend runs it."""
    return f"gallery.{token(job_id)}.cancel"


def staging_progress(model_id: str) -> str:
    """How far a model's files are on their way to a node."""
    return f"staging.{token(model_id)}.progress"


def state_delta(name: str) -> str:
    """One change of a map that all frontends mirror; `name` is one of STATE_NAMES."""
    return f"state.{token(name)}.delta"


STATE_NAMES: Final = ("finetune.jobs", "quant.jobs", "agent.tasks", "responses.metadata")


def response_cancel(response_id: str) -> str:
    """Stop generating one response."""
    return f"responses.{token(response_id)}.cancel"


# Agent workers. Each message of a queue group reaches one member.

JOB_QUEUE: Final = "workers"
JOBS_NEW: Final = "jobs.new"
"""A job for any member of JOB_QUEUE."""
JOBS_MCP_CI_NEW: Final = "jobs.mcp-ci.new"
"""A job that runs tools, for any member of JOB_QUEUE."""
AGENT_QUEUE: Final = "agent-workers"
AGENT_EXECUTE: Final = "agent.execute"
"""Run an agent, for any member of AGENT_QUEUE."""
MCP_TOOLS_EXECUTE: Final = "mcp.tools.execute"
"""Call a tool; request and reply, for any member of AGENT_QUEUE."""
MCP_DISCOVERY: Final = "mcp.discovery"
"""List the tools; request and reply, for any member of AGENT_QUEUE."""
ALL_AGENT_CANCELS: Final = "agent.*.cancel"
ALL_JOB_PROGRESS: Final = "jobs.*.progress"
ALL_JOB_RESULTS: Final = "jobs.*.result"
ALL_JOB_CANCELS: Final = "jobs.*.cancel"


def job_progress(job_id: str) -> str:
    """How far a job is."""
    return f"jobs.{token(job_id)}.progress"


def job_result(job_id: str) -> str:
    """How a job ended."""
    return f"jobs.{token(job_id)}.result"


def job_cancel(job_id: str) -> str:
    """Stop a job."""
    return f"jobs.{token(job_id)}.cancel"


def agent_events(agent: str, user: str = "") -> str:
    """What an agent does for a user; without one it is `anonymous`."""
    return f"agent.{token(agent)}.events.{token(user or 'anonymous')}"


def agent_cancel(agent_id: str) -> str:
    """Stop an agent's run."""
    return f"agent.{token(agent_id)}.cancel"


class Permissions(NamedTuple):
    """What a node's bus user may subscribe to and publish on, beside answering requests."""

    subscribe: tuple[str, ...]
    publish: tuple[str, ...]


def permissions(node_type: Literal["backend", "agent"], node: NodeId) -> Permissions:
    """The least a node of this type works with.

    There is no `_INBOX.>`: a node that may read or write every inbox can read and forge other nodes' replies.
    It answers below its own id only. Answers granted per request (`allow_responses`) would be forgotten with
    the connection that brought the request.
    """
    if node_type == "backend":
        return Permissions((node_all(node),), (install_progress_all(node), files_all(node), replies_of(node)))
    return Permissions(
        subscribe=(
            AGENT_EXECUTE,
            ALL_AGENT_CANCELS,
            ALL_GALLERY_CANCELS,
            ALL_GALLERY_PROGRESS,
            ALL_JOB_CANCELS,
            ALL_JOB_PROGRESS,
            ALL_JOB_RESULTS,
            JOBS_MCP_CI_NEW,
            MCP_TOOLS_EXECUTE,
            MCP_DISCOVERY,
            backend_stop(node),
            ALL_STAGING_PROGRESS,
        ),
        publish=("agent.>", "jobs.>", replies_of(node)),
    )
