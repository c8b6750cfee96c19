"""The tables, as this release knows them. How they came about stands in `migrations`; a test compares.

Indexes of some rows only stand in `partial_indexes`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
)

from remuda.accounts.terms import KeyTerms
from remuda.core.errors import Problem
from remuda.fleet.model import Claim
from remuda.models.files import Manifest
from remuda.ops.model import Goal, Installation, RollOut
from remuda.ops.ports import Progress
from remuda.scheduler.model import SeenFacts
from remuda.scheduler.scheduling import SchedulingTerms
from remuda.store.ops_codec import Document, StoredReason, StoredSource, StoredStepReason
from remuda.wire.nodes import InstalledArtifact

SCHEMA_VERSION = 34
"""What this release writes. Counts up with each migration."""

MIN_COMPATIBLE_VERSION = 1
"""The oldest release that still works with what this one writes; older ones refuse the database."""

ColumnValues = Mapping[str, object]
"""Of one row, by the names of its columns."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Instant(TypeDecorator[datetime]):
    """An aware datetime, kept as microseconds since the epoch: exact, and the same on every database."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else _EPOCH + value * _MICROSECOND


_Serial = BigInteger().with_variant(Integer(), "sqlite")  # SQLite counts up only an INTEGER key.

metadata = MetaData()

nodes = Table(
    "nodes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("node_type", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("http_address", Text, nullable=False),
    Column("machine_id", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("total_vram", BigInteger, nullable=False),
    Column("available_vram", BigInteger, nullable=False),
    Column("total_ram", BigInteger, nullable=False),
    Column("available_ram", BigInteger, nullable=False),
    Column("total_disk", BigInteger, nullable=False),
    Column("available_disk", BigInteger, nullable=False),
    Column("gpu_vendor", Text, nullable=False),
    Column("gpu_compute_capability", Text, nullable=False),
    Column("capability", Text, nullable=False),
    Column("vram_budget", Text, nullable=False),
    Column("vram_budget_override", Text),
    Column("files_budget_override", Text),
    Column("max_replicas", Integer, nullable=False),
    Column("max_replicas_override", Integer),
    Column("approved", Boolean, nullable=False),
    Column("drained", Boolean, nullable=False),
    Column("leaving", Boolean, nullable=False),
    Column("departed", Boolean, nullable=False),
    Column("last_heartbeat", Instant, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("report_boot_id", Text),  # The three report columns are set together or not at all.
    Column("report_sequence", BigInteger),
    Column("report_body", Text),
    Column("bus_trouble_boot_id", Text),  # These three, too, are set together or not at all.
    Column("bus_trouble_sequence", BigInteger),
    Column("bus_trouble", Text),
    Column("bus_trouble_heard_at", Instant),  # Null, too, in rows of releases that did not note it.
    Column("bus_trouble_code", Text, nullable=False, server_default=""),
    Column("registered_at", Instant),
    Column("registration_hash", Text, nullable=False),
    Column("source", Text, nullable=False, server_default=""),
    Column("secret_hash", Text, nullable=False, server_default=""),
    Column("invite", Text, nullable=False, server_default=""),
    Column("contested_from", Text, nullable=False, server_default=""),
    Column("claim", Document(Claim)),
    Column("left_fleet", Boolean, nullable=False, server_default=false()),
    Column("ended", Text, nullable=False, server_default=""),
    UniqueConstraint("name", name="nodes_name_key"),
)

invites = Table(  # By name, whether or not a node of that name exists yet.
    "invites",
    metadata,
    Column("name", Text, primary_key=True),
    Column("nonce", Text, nullable=False),  # From it and a cluster secret the invite's token is derived.
    Column("created_at", Instant, nullable=False),
)

node_labels = Table(
    "node_labels",
    metadata,
    Column("node_id", Text, ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("source", Text, nullable=False),
)

node_dials = Table(
    "node_dials",
    metadata,
    Column("node_id", Text, ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
    Column("frontend", Text, primary_key=True),
    Column("problem", Text, nullable=False),
    Column("checked_at", Instant, nullable=False),
    Column("bus_closed", Boolean, nullable=False, server_default=false()),
)

command_probes = Table(
    "command_probes",
    metadata,
    Column("node_id", Text, ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
    Column("frontend", Text, primary_key=True),
    Column("problem", Text, nullable=False),
    Column("checked_at", Instant, nullable=False),
)

hearing_spans = Table(
    "hearing_spans",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("frontend", Text, nullable=False),
    Column("since", Instant, nullable=False),
    Column("until", Instant, nullable=False),
)

history = Table(
    "history",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("node_id", Text, ForeignKey("nodes.id", ondelete="SET NULL"), index=True),
    Column("node_name", Text, nullable=False, index=True),
    Column("event", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("actor", Text, nullable=False),
)

revoked_bus_keys = Table(
    "revoked_bus_keys",
    metadata,
    Column("public_key", Text, primary_key=True),
    Column("revoked_at", Instant, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("hint", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("revoked_at", Instant),
    Column("models", Document(tuple[str, ...]), nullable=False, server_default="[]"),
    Column("terms", Document(KeyTerms), nullable=False, server_default="{}"),
    Column("paused", Boolean, nullable=False, server_default=false()),
    Column("last_used_at", Instant),
    UniqueConstraint("digest", name="api_keys_digest_key"),
)

secrets = Table(
    "secrets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
)

ended_sessions = Table(
    "ended_sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("until", Instant, nullable=False),
)

operations = Table(
    "operations",
    metadata,
    Column("id", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),  # Of the change by which it came: newer ones have higher.
    Column("change", BigInteger, nullable=False),  # Of the last one.
    Column("kind", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("model", Text, nullable=False, server_default=""),
    Column("source", Document(StoredSource), nullable=False),
    Column("roll_out", Document(RollOut), nullable=False),
    Column("asked_by", Text, nullable=False),
    Column("asked_at", Instant, nullable=False),
    Column("wish", Text, nullable=False),
    Column("expires", Instant),
    Column("idempotency_key", Text),
    Column("selection", Text, nullable=False),
    Column("finished_at", Instant),
    Column("dismissed", Boolean, nullable=False),
    Column("cleared", Boolean, nullable=False, server_default=false()),  # From the history, too.
    Column("version", Integer, nullable=False),
    UniqueConstraint("idempotency_key", name="operations_idempotency_key_key"),
)

Index("operations_number", operations.c.number, unique=True)
Index("operations_model", operations.c.model, operations.c.number)
Index("operations_change", operations.c.change, unique=True)

joined_keys = Table(  # Idempotency keys of wishes that joined an operation under way.
    "joined_keys",
    metadata,
    Column("key", Text, primary_key=True),
    Column("op_id", Text, ForeignKey("operations.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("selection", Text, nullable=False),
    Column("joined_at", Instant, nullable=False),
)

steps = Table(
    "steps",
    metadata,
    Column("op_id", Text, ForeignKey("operations.id", ondelete="CASCADE"), primary_key=True),
    Column("node", Text, primary_key=True),  # Its id, whether or not it still exists.
    Column("node_id", Text, ForeignKey("nodes.id", ondelete="SET NULL"), index=True),
    Column("node_name", Text, nullable=False),
    Column("source", Document(StoredSource)),  # Where it is not the operation's.
    Column("goal", Document(Goal), nullable=False),
    Column("state", Text, nullable=False),
    Column("stage", Text, nullable=False),
    Column("proves", Boolean, nullable=False),
    Column("rolls_back", Boolean, nullable=False),
    Column("expires", Instant),
    Column("attempt", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("boot", Text),
    Column("answer_by", Instant),
    Column("wait_until", Instant),
    Column("problem", Document(Problem)),
    Column("reason", Text, nullable=False),  # In words; see ops_codec.
    Column("cause", Document(StoredStepReason)),
    Column("replaced_by", Text),
    Column("listed_before", Document(Installation)),
    Column("ended_at", Instant),  # Set exactly while its state is final.
    Column("version", Integer, nullable=False),
    Index("steps_node", "node", "ended_at"),
)

attempts = Table(  # History, and the request by which the attempt was sent.
    "attempts",
    metadata,
    Column("op_id", Text, primary_key=True),
    Column("node", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("stage", Text, nullable=False),
    Column("begun_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("problem", Document(Problem)),
    Column("owner", Text, nullable=False),  # The frontend that sent it.
    Column("open_until", Instant, nullable=False),
    Column("progress", Document(Progress)),
    Column("note", Text),  # What its reply said besides success.
    ForeignKeyConstraint(["op_id", "node"], ["steps.op_id", "steps.node"], ondelete="CASCADE"),
)

node_inventories = Table(
    "node_inventories",
    metadata,
    Column("node_id", Text, ForeignKey("nodes.id", ondelete="CASCADE"), primary_key=True),
    Column("boot", Text, nullable=False),
    Column("listed_at", Instant, nullable=False),
    Column("backends", Document(tuple[InstalledArtifact, ...]), nullable=False),
)

change_count = Table(  # One row.
    "change_count",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("latest", BigInteger, nullable=False),
)

replicas = Table(
    "replicas",
    metadata,
    Column("model", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("node_id", Text, ForeignKey("nodes.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("state", Text, nullable=False),
    Column("op_id", Text, nullable=False),  # No reference: operations that are over are forgotten.
    Column("backend", Text, nullable=False),
    Column("revision", Text, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("in_vram", Boolean, nullable=False),
    Column("ram_beside_bytes", BigInteger, nullable=False, server_default="0"),
    Column("parallel", Integer, nullable=False),
    Column("gpus", Document(tuple[int, ...]), nullable=False, server_default="[]"),
    Column("concurrency_groups", Document(tuple[str, ...]), nullable=False, server_default="[]"),
    Column("address", Text, nullable=False),
    Column("protocol", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("instance", Text, nullable=False),
    Column("boot", Text),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("last_used", Instant),
    Column("why", Text, nullable=False),  # In words; see ops_codec.
    Column("reason", Document(StoredReason)),
    Column("change", BigInteger, nullable=False),
)

on_its_way = replicas.c.state.in_(("staging", "loading"))

replica_change_count = Table(  # One row, which outlives every replica.
    "replica_change_count",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("latest", BigInteger, nullable=False),
)

models = Table(
    "models",
    metadata,
    Column("name", Text, primary_key=True),
    Column("subject_token", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("revision", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("manifest", Document(Manifest)),  # Of a model whose files the fleet has brought.
    Column("kept_by", Text, nullable=False, server_default=""),  # The frontend that fetched them.
    Column("seen", Document(SeenFacts)),  # What its file says of itself, where a frontend has it.
    UniqueConstraint("subject_token", name="models_subject_token_key"),
)

model_scheduling = Table(  # Also of models that are not configured yet.
    "model_scheduling",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("model", Text, nullable=False),
    Column("terms", Document(SchedulingTerms), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    UniqueConstraint("model", name="model_scheduling_model_key"),
)

model_cooldowns = Table(
    "model_cooldowns",
    metadata,
    Column("model", Text, primary_key=True),
    Column("attempts", Integer, nullable=False),
    Column("until", Instant, nullable=False),
    Column("fleet", Text, nullable=False),  # A fingerprint of what could make a difference.
    Column("why", Text, nullable=False),
)

benchmarks = Table(
    "benchmarks",
    metadata,
    Column("id", _Serial, primary_key=True),
    Column("model", Text, nullable=False, index=True),
    Column("node_name", Text, nullable=False),
    Column("streams", Integer, nullable=False),
    Column("requests", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("first_token_ms", Double, nullable=False),
    Column("first_token_p95_ms", Double, nullable=False),
    Column("tokens_per_s", Double, nullable=False),
    Column("prompt_tokens_per_s", Double, nullable=False),
    Column("revision", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("measured_at", Instant, nullable=False),
)

responses = Table(
    "responses",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("previous_id", Text, nullable=False),
    Column("background", Boolean, nullable=False),
    Column("echo", LargeBinary, nullable=False),
    Column("input", LargeBinary, nullable=False),
    Column("output", LargeBinary, nullable=False),
    Column("usage", LargeBinary, nullable=False),
    Column("error", LargeBinary, nullable=False),
    Column("incomplete", LargeBinary, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("completed", BigInteger, nullable=False),
    Column("kept_bytes", BigInteger, nullable=False),
    Column("used_at", Instant, nullable=False),
    Column("lease_until", Instant),
    Index("responses_by_owner", "owner", "used_at"),
    Index("responses_by_use", "used_at"),
)

measured_memory = Table(
    "measured_memory",
    metadata,
    Column("model", Text, primary_key=True),
    Column("revision", Text, primary_key=True),
    Column("build", Text, primary_key=True),
    Column("hardware", Text, primary_key=True),
    Column("vram_bytes", BigInteger, nullable=False),
    Column("ram_bytes", BigInteger, nullable=False),
    Column("measured_at", Instant, nullable=False),
)

key_leases = Table(  # What frontends have spent and set aside of what keys may take.
    "key_leases",
    metadata,
    Column("key_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("begins_at", Instant, primary_key=True, autoincrement=False),
    Column("holder", Text, primary_key=True),
    Column("ends_at", Instant, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("renewed_at", Instant, nullable=False),
)

servers = Table(
    "servers",
    metadata,
    Column("name", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("paid", Boolean, nullable=False),
    Column("prices", Document(dict[str, str]), nullable=False),  # By model: READ/WRITTEN.
    Column("budget", BigInteger, nullable=False),
    Column("parallel", Integer, nullable=False),
    Column("max_tokens", Integer, nullable=False),
    Column("change", BigInteger, nullable=False),
)

server_spending = Table(  # Outlives its server: a name that is used again has the budget that is left.
    "server_spending",
    metadata,
    Column("server", Text, primary_key=True),
    Column("month", Text, primary_key=True),  # Such as 2026-11, UTC.
    Column("taken", BigInteger, nullable=False),  # By frontends, to spend.
    Column("spent", BigInteger, nullable=False),
)

measured_rates = Table(  # How fast nodes were seen to be, by kind and model.
    "measured_rates",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("node_id", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("per_s", Double, nullable=False),
    Column("backend", Text, nullable=False),
    Column("weights_bytes", BigInteger, nullable=False),
    Column("measured_at", Instant, nullable=False),
)

usage = Table(  # What keys have taken.
    "usage",
    metadata,
    Column("day", Text, primary_key=True),  # Of UTC, as 2026-03-01.
    Column("key_id", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("node", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
)

usage_batches = Table(  # The last one that each process has added.
    "usage_batches",
    metadata,
    Column("writer", Text, primary_key=True),
    Column("batch", BigInteger, nullable=False),
    Column("written_at", Instant, nullable=False),
)

schema_info = Table(  # One row: what the newest release that migrated this database said about itself.
    "schema_info",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("min_compatible_version", Integer, nullable=False),
    Column("updated_at", Instant, nullable=False),
)
