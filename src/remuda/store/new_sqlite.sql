-- Schema version 34
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0034');
CREATE TABLE api_keys (
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	role TEXT NOT NULL,
	digest TEXT NOT NULL,
	hint TEXT NOT NULL,
	created_at BIGINT NOT NULL,
	revoked_at BIGINT, models TEXT DEFAULT '[]' NOT NULL, terms TEXT DEFAULT '{}' NOT NULL, paused BOOLEAN DEFAULT 0 NOT NULL, last_used_at BIGINT,
	PRIMARY KEY (id),
	CONSTRAINT api_keys_digest_key UNIQUE (digest)
);
CREATE TABLE attempts (
	op_id TEXT NOT NULL,
	node TEXT NOT NULL,
	number INTEGER NOT NULL,
	stage TEXT NOT NULL,
	begun_at BIGINT NOT NULL,
	ended_at BIGINT,
	problem TEXT,
	owner TEXT NOT NULL,
	open_until BIGINT NOT NULL,
	progress TEXT, note TEXT,
	PRIMARY KEY (op_id, node, number),
	FOREIGN KEY(op_id, node) REFERENCES steps (op_id, node) ON DELETE CASCADE
);
CREATE TABLE benchmarks (
	id INTEGER NOT NULL,
	model TEXT NOT NULL,
	node_name TEXT NOT NULL,
	streams INTEGER NOT NULL,
	requests INTEGER NOT NULL,
	failed INTEGER NOT NULL,
	prompt_tokens BIGINT NOT NULL,
	completion_tokens BIGINT NOT NULL,
	first_token_ms DOUBLE NOT NULL,
	first_token_p95_ms DOUBLE NOT NULL,
	tokens_per_s DOUBLE NOT NULL,
	prompt_tokens_per_s DOUBLE NOT NULL,
	revision TEXT NOT NULL,
	backend TEXT NOT NULL,
	measured_at BIGINT NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE change_count (
	id INTEGER NOT NULL,
	latest BIGINT NOT NULL,
	PRIMARY KEY (id)
);
INSERT INTO "change_count" VALUES(1,0);
CREATE TABLE command_probes (
	node_id TEXT NOT NULL,
	frontend TEXT NOT NULL,
	problem TEXT NOT NULL,
	checked_at BIGINT NOT NULL,
	PRIMARY KEY (node_id, frontend),
	FOREIGN KEY(node_id) REFERENCES nodes (id) ON DELETE CASCADE
);
CREATE TABLE ended_sessions (
	id TEXT NOT NULL,
	until BIGINT NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE hearing_spans (
	id INTEGER NOT NULL,
	frontend TEXT NOT NULL,
	since BIGINT NOT NULL,
	until BIGINT NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE history (
	id INTEGER NOT NULL,
	at BIGINT NOT NULL,
	node_id TEXT,
	node_name TEXT NOT NULL,
	event TEXT NOT NULL,
	detail TEXT NOT NULL,
	actor TEXT NOT NULL,
	PRIMARY KEY (id),
	FOREIGN KEY(node_id) REFERENCES nodes (id) ON DELETE SET NULL
);
CREATE TABLE invites (
	name TEXT NOT NULL,
	nonce TEXT NOT NULL,
	created_at BIGINT NOT NULL,
	PRIMARY KEY (name)
);
CREATE TABLE joined_keys (
	"key" TEXT NOT NULL,
	op_id TEXT NOT NULL,
	selection TEXT NOT NULL,
	joined_at BIGINT NOT NULL,
	PRIMARY KEY ("key"),
	FOREIGN KEY(op_id) REFERENCES operations (id) ON DELETE CASCADE
);
CREATE TABLE key_leases (
	key_id TEXT NOT NULL,
	kind TEXT NOT NULL,
	begins_at BIGINT NOT NULL,
	holder TEXT NOT NULL,
	ends_at BIGINT NOT NULL,
	amount BIGINT NOT NULL,
	renewed_at BIGINT NOT NULL,
	PRIMARY KEY (key_id, kind, begins_at, holder)
);
CREATE TABLE measured_memory (
	model TEXT NOT NULL,
	revision TEXT NOT NULL,
	build TEXT NOT NULL,
	hardware TEXT NOT NULL,
	vram_bytes BIGINT NOT NULL,
	ram_bytes BIGINT NOT NULL,
	measured_at BIGINT NOT NULL,
	PRIMARY KEY (model, revision, build, hardware)
);
CREATE TABLE measured_rates (
	kind TEXT NOT NULL,
	node_id TEXT NOT NULL,
	model TEXT NOT NULL,
	per_s DOUBLE NOT NULL,
	backend TEXT NOT NULL,
	weights_bytes BIGINT NOT NULL,
	measured_at BIGINT NOT NULL,
	PRIMARY KEY (kind, node_id, model)
);
CREATE TABLE model_cooldowns (
	model TEXT NOT NULL,
	attempts INTEGER NOT NULL,
	until BIGINT NOT NULL,
	fleet TEXT NOT NULL,
	why TEXT NOT NULL,
	PRIMARY KEY (model)
);
CREATE TABLE model_scheduling (
	id INTEGER NOT NULL,
	model TEXT NOT NULL,
	terms TEXT NOT NULL,
	created_at BIGINT NOT NULL,
	updated_at BIGINT NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT model_scheduling_model_key UNIQUE (model)
);
CREATE TABLE models (
	name TEXT NOT NULL,
	subject_token TEXT NOT NULL,
	text TEXT NOT NULL,
	revision TEXT NOT NULL,
	origin TEXT NOT NULL,
	updated_at BIGINT NOT NULL, manifest TEXT, kept_by TEXT DEFAULT '' NOT NULL, seen TEXT,
	PRIMARY KEY (name),
	CONSTRAINT models_subject_token_key UNIQUE (subject_token)
);
CREATE TABLE node_dials (
	node_id TEXT NOT NULL,
	frontend TEXT NOT NULL,
	problem TEXT NOT NULL,
	checked_at BIGINT NOT NULL, bus_closed BOOLEAN DEFAULT 0 NOT NULL,
	PRIMARY KEY (node_id, frontend),
	FOREIGN KEY(node_id) REFERENCES nodes (id) ON DELETE CASCADE
);
CREATE TABLE node_inventories (
	node_id TEXT NOT NULL,
	boot TEXT NOT NULL,
	listed_at BIGINT NOT NULL,
	backends TEXT NOT NULL,
	PRIMARY KEY (node_id),
	FOREIGN KEY(node_id) REFERENCES nodes (id) ON DELETE CASCADE
);
CREATE TABLE node_labels (
	node_id TEXT NOT NULL,
	"key" TEXT NOT NULL,
	value TEXT NOT NULL,
	source TEXT NOT NULL,
	PRIMARY KEY (node_id, "key"),
	FOREIGN KEY(node_id) REFERENCES nodes (id) ON DELETE CASCADE
);
CREATE TABLE nodes (
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	node_type TEXT NOT NULL,
	address TEXT NOT NULL,
	http_address TEXT NOT NULL,
	machine_id TEXT NOT NULL,
	boot_id TEXT NOT NULL,
	version TEXT NOT NULL,
	total_vram BIGINT NOT NULL,
	available_vram BIGINT NOT NULL,
	total_ram BIGINT NOT NULL,
	available_ram BIGINT NOT NULL,
	total_disk BIGINT NOT NULL,
	available_disk BIGINT NOT NULL,
	gpu_vendor TEXT NOT NULL,
	gpu_compute_capability TEXT NOT NULL,
	capability TEXT NOT NULL,
	vram_budget TEXT NOT NULL,
	vram_budget_override TEXT,
	max_replicas INTEGER NOT NULL,
	max_replicas_override INTEGER,
	approved BOOLEAN NOT NULL,
	drained BOOLEAN NOT NULL,
	leaving BOOLEAN NOT NULL,
	departed BOOLEAN NOT NULL,
	last_heartbeat BIGINT NOT NULL,
	created_at BIGINT NOT NULL,
	updated_at BIGINT NOT NULL,
	report_boot_id TEXT,
	report_sequence BIGINT,
	report_body TEXT, bus_trouble_boot_id TEXT, bus_trouble_sequence BIGINT, bus_trouble TEXT, registered_at BIGINT, registration_hash TEXT DEFAULT '' NOT NULL, source TEXT DEFAULT '' NOT NULL, secret_hash TEXT DEFAULT '' NOT NULL, invite TEXT DEFAULT '' NOT NULL, contested_from TEXT DEFAULT '' NOT NULL, claim TEXT, left_fleet BOOLEAN DEFAULT 0 NOT NULL, ended TEXT DEFAULT '' NOT NULL, bus_trouble_heard_at BIGINT, bus_trouble_code TEXT DEFAULT '' NOT NULL, files_budget_override TEXT,
	PRIMARY KEY (id),
	CONSTRAINT nodes_name_key UNIQUE (name)
);
CREATE TABLE operations (
	id TEXT NOT NULL,
	number BIGINT NOT NULL,
	change BIGINT NOT NULL,
	kind TEXT NOT NULL,
	backend TEXT NOT NULL,
	source TEXT NOT NULL,
	roll_out TEXT NOT NULL,
	asked_by TEXT NOT NULL,
	asked_at BIGINT NOT NULL,
	wish TEXT NOT NULL,
	expires BIGINT,
	idempotency_key TEXT,
	selection TEXT NOT NULL,
	finished_at BIGINT,
	dismissed BOOLEAN NOT NULL,
	version INTEGER NOT NULL, cleared BOOLEAN DEFAULT 0 NOT NULL, model TEXT DEFAULT '' NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT operations_idempotency_key_key UNIQUE (idempotency_key)
);
CREATE TABLE replica_change_count (
	id INTEGER NOT NULL,
	latest BIGINT NOT NULL,
	PRIMARY KEY (id)
);
INSERT INTO "replica_change_count" VALUES(1,0);
CREATE TABLE replicas (
	model TEXT NOT NULL,
	number INTEGER NOT NULL,
	node_id TEXT NOT NULL,
	state TEXT NOT NULL,
	op_id TEXT NOT NULL,
	backend TEXT NOT NULL,
	revision TEXT NOT NULL,
	memory_bytes BIGINT NOT NULL,
	in_vram BOOLEAN NOT NULL,
	parallel INTEGER NOT NULL,
	address TEXT NOT NULL,
	protocol TEXT NOT NULL,
	path TEXT NOT NULL,
	instance TEXT NOT NULL,
	boot TEXT,
	created_at BIGINT NOT NULL,
	updated_at BIGINT NOT NULL,
	last_used BIGINT,
	why TEXT NOT NULL,
	change BIGINT NOT NULL, reason TEXT, ram_beside_bytes BIGINT DEFAULT '0' NOT NULL, gpus TEXT DEFAULT '[]' NOT NULL, concurrency_groups TEXT DEFAULT '[]' NOT NULL,
	PRIMARY KEY (model, number),
	FOREIGN KEY(node_id) REFERENCES nodes (id) ON DELETE CASCADE
);
CREATE TABLE responses (
	id TEXT NOT NULL,
	owner TEXT NOT NULL,
	model TEXT NOT NULL,
	status TEXT NOT NULL,
	previous_id TEXT NOT NULL,
	background BOOLEAN NOT NULL,
	echo BLOB NOT NULL,
	input BLOB NOT NULL,
	output BLOB NOT NULL,
	usage BLOB NOT NULL,
	error BLOB NOT NULL,
	incomplete BLOB NOT NULL,
	created BIGINT NOT NULL,
	completed BIGINT NOT NULL,
	kept_bytes BIGINT NOT NULL,
	used_at BIGINT NOT NULL,
	lease_until BIGINT,
	PRIMARY KEY (id)
);
CREATE TABLE revoked_bus_keys (
	public_key TEXT NOT NULL,
	revoked_at BIGINT NOT NULL,
	PRIMARY KEY (public_key)
);
CREATE TABLE schema_info (
	version INTEGER NOT NULL,
	min_compatible_version INTEGER NOT NULL,
	updated_at BIGINT NOT NULL,
	PRIMARY KEY (version)
);
CREATE TABLE secrets (
	name TEXT NOT NULL,
	value TEXT NOT NULL,
	created_at BIGINT NOT NULL,
	PRIMARY KEY (name)
);
CREATE TABLE server_spending (
	server TEXT NOT NULL,
	month TEXT NOT NULL,
	taken BIGINT NOT NULL,
	spent BIGINT NOT NULL,
	PRIMARY KEY (server, month)
);
CREATE TABLE servers (
	name TEXT NOT NULL,
	kind TEXT NOT NULL,
	url TEXT NOT NULL,
	"key" TEXT NOT NULL,
	paid BOOLEAN NOT NULL,
	prices TEXT NOT NULL,
	budget BIGINT NOT NULL,
	parallel INTEGER NOT NULL,
	max_tokens INTEGER NOT NULL,
	change BIGINT NOT NULL,
	PRIMARY KEY (name)
);
CREATE TABLE steps (
	op_id TEXT NOT NULL,
	node TEXT NOT NULL,
	node_id TEXT,
	node_name TEXT NOT NULL,
	source TEXT,
	goal TEXT NOT NULL,
	state TEXT NOT NULL,
	stage TEXT NOT NULL,
	proves BOOLEAN NOT NULL,
	rolls_back BOOLEAN NOT NULL,
	expires BIGINT,
	attempt INTEGER NOT NULL,
	failures INTEGER NOT NULL,
	boot TEXT,
	answer_by BIGINT,
	wait_until BIGINT,
	problem TEXT,
	reason TEXT NOT NULL,
	replaced_by TEXT,
	ended_at BIGINT,
	version INTEGER NOT NULL, listed_before TEXT, cause TEXT,
	PRIMARY KEY (op_id, node),
	FOREIGN KEY(op_id) REFERENCES operations (id) ON DELETE CASCADE,
	FOREIGN KEY(node_id) REFERENCES nodes (id) ON DELETE SET NULL
);
CREATE TABLE usage (
	day TEXT NOT NULL,
	key_id TEXT NOT NULL,
	model TEXT NOT NULL,
	node TEXT NOT NULL,
	requests BIGINT NOT NULL,
	failed BIGINT NOT NULL,
	prompt_tokens BIGINT NOT NULL,
	completion_tokens BIGINT NOT NULL,
	cost BIGINT NOT NULL,
	PRIMARY KEY (day, key_id, model, node)
);
CREATE TABLE usage_batches (
	writer TEXT NOT NULL,
	batch BIGINT NOT NULL,
	written_at BIGINT NOT NULL,
	PRIMARY KEY (writer)
);
CREATE INDEX ix_history_node_id ON history (node_id);
CREATE INDEX ix_history_node_name ON history (node_name);
CREATE UNIQUE INDEX api_keys_name_in_force ON api_keys (name) WHERE revoked_at IS NULL;
CREATE INDEX operations_live ON operations (asked_at) WHERE finished_at IS NULL;
CREATE INDEX operations_over ON operations (finished_at, number) WHERE finished_at IS NOT NULL;
CREATE UNIQUE INDEX operations_number ON operations (number);
CREATE UNIQUE INDEX operations_change ON operations (change);
CREATE INDEX ix_steps_node_id ON steps (node_id);
CREATE INDEX steps_node ON steps (node, ended_at);
CREATE INDEX ix_replicas_node_id ON replicas (node_id);
CREATE INDEX operations_model ON operations (model, number);
CREATE INDEX ix_joined_keys_op_id ON joined_keys (op_id);
CREATE INDEX ix_benchmarks_model ON benchmarks (model);
CREATE INDEX replicas_on_their_way ON replicas (model) WHERE state IN ('staging', 'loading');
CREATE INDEX responses_by_owner ON responses (owner, used_at);
CREATE INDEX responses_by_use ON responses (used_at);
