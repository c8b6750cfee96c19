"""Bounds of frontends and workers as a whole, named with their units, on one page: they depend on each other.

What bounds one piece of code is beside it, or in its package's `limits.py`. Nothing waits, queues or grows
without a bound.
"""

# Fleet.
LIVENESS_EVERY_S = 5.0  # How often a frontend proves to itself that it can hear the fleet.
LIVENESS_ROUND_TRIP_S = 2.0  # Patience with one such proof.
HEARTBEATS_WAITING_MAX = 10_000  # Taken in, not yet written; beyond it senders have to retry.
HEARTBEATS_PER_WRITE_MAX = 500
HEARTBEATS_GATHER_S = 0.02  # After a group was written: a transaction costs as much as all else about one.
HEARTBEAT_WRITE_S = 10.0  # A worker gives up on a heartbeat after this long, so later is never.
DIAL_EVERY_S = 20.0  # How often a node that answered is called again.
DIAL_RETRY_EVERY_S = 15.0
DIAL_EAGER_S = 60.0  # A node that does not answer is called at every look for so long, then less often.
DIAL_GRACE_S = 10.0  # A node is said to be out of reach after so long without an answer.
DIAL_FIRST_GRACE_S = 30.0  # The same for a LocalAI worker that was just started: its file server opens late.
DIAL_SOON_S = 1.0  # Until a node is called whose worker's connection to the bus was closed.
DIAL_LOST_GRACE_S = 2.0  # For such a worker to connect again, or to answer.
DIALS_WANTED_MAX = 10_000
DIAL_S = 3.0
DIALS_AT_ONCE_MAX = 16
PROBE_LOOK_EVERY_S = 3.0  # How often a frontend looks whose command path is to be probed over the bus.
PROBE_EVERY_S = 30.0  # How often a worker that answered is asked again.
PROBE_S = 3.0  # For a worker to answer; none in time says nothing about it.
PROBES_UNHEARD = 3  # Without a subscriber, with heartbeats between them: the worker is on another bus.
PROBES_AT_ONCE_MAX = 16
PROBES_PER_LOOK_MAX = 64  # The others are asked at the next look.
PROBE_BUS_STEADY_S = 10.0  # After the bus came back, workers get this long to reconnect to it.
BYTES_REPORTED_MAX = 1 << 60  # More RAM, VRAM or disk than this is a mistake, not a machine.
HISTORY_PAGE_MAX = 500
NODE_LABELS_MAX = 256  # From its worker, and as many from admins.
NODES_MAX = 5000  # With invites. With automatic approval, every holder of the token can make them.
PENDING_NODES_MAX = 256  # That wait for approval: every holder of the token can make them.
PENDING_PER_SOURCE_MAX = 16  # Of those, from one address.
PENDING_SILENCE_S = 3600.0  # Those not heard for so long make room when there are too many.
CALLERS_LOOKED_UP_MAX = 2  # At once, of those who have not proven yet which node they are.
CALLERS_WAITING_MAX = 200  # Callers waiting to be looked up; further ones get 503.
CLAIM_LIVES_S = 180.0  # A machine that wants a gone node's name and has asked within this time comes first.

# Gateway.
HEAD_BYTES_MAX = 64 << 10  # Request line and headers.
HEADERS_MAX = 256  # Of one request: each is handled on its own, however short it is.
QUERY_BYTES_MAX = 8 << 10
BODY_BYTES_MAX = 1 << 20
BODY_CONTAINERS_MAX = 5000  # Objects and lists in one body: checking each takes 5 microseconds.
HEAD_READ_S = 60.0  # From a request's first byte, or a connection's beginning, to the end of the head.
FRAMING_BYTES_MAX = 16 << 20  # Of one request, beside its body: sizes of chunks, trailers.
LINGER_S = 30.0  # What follows a refusal is read for so long: many callers read only after they wrote it all.
KEEP_ALIVE_S = 75.0  # Longer than the usual pause between heartbeats, so that they share a connection.
BODY_READ_S = 30.0
INFERENCE_BODY_BYTES_MAX = 64 << 20  # Unless set otherwise; images come inside, as text.
INFERENCE_JSON_BYTES_MAX = 8 << 20  # Of one body without the base64 in it: parsing blocks the loop.
PARSED_AT_ONCE_BYTES_MAX = 4 << 20  # Which takes 2 ms at most if it is base64; see inference.large_bodies.
INFERENCE_BODIES_BYTES_MAX = 1 << 30  # Of all requests under way together.
INFERENCE_BODY_READ_S = 120.0
UNKNOWN_MODEL_LOOK_S = 3.0  # For the store to say whether there is a model that this frontend does not know.
UNKNOWN_MODEL_LOOK_GAP_S = 0.1  # Between two such looks, however many ask.
UNKNOWN_MODELS_WAITING_MAX = 256
KEYS_REFRESH_EVERY_S = 0.8  # How late a key revoked on another frontend may still work.
ENDED_SESSIONS_MAX = 10_000  # Sessions that people have signed out of, which are known for a week.
KEYS_USED_EVERY_S = 5.0  # How often it is written down which keys were used.
CONFIRMATION_S = 2.0  # Patience with a worker that is asked what it runs, over the bus or over HTTP.
CONFIRMATIONS_AT_ONCE_MAX = 64  # Nodes that are asked so at a time, while the store is away.
LOAD_WHOLE_S = 24 * 3600.0  # A load, its install included, however long its bytes keep moving.
UNLOADS_TOLD_MAX = 256  # In one signal to other frontends; the next one has the rest.
SHUTDOWN_S = 10.0  # Requests in flight get this long when a frontend stops.
KEY_NAME_CHARS_MAX = 100
KEY_MODELS_MAX = 1000  # Named by one key.
KEY_LIMIT_MAX = 10**15  # Of requests and tokens.
KEY_WEIGHT_MAX = 1000
KEY_CLAIM_S = (
    1.0  # A request waits so long for the store where nothing of its key's limits was set aside yet.
)
KEY_CLAIMS_WAITING_MAX = 2000  # Such requests.
KEY_CLAIMS_AT_ONCE_MAX = 500  # Limits of keys in one transaction; the others follow.
USAGE_WRITE_EVERY_S = 5.0  # How often it is written down what keys have taken.
USAGE_WAITING_MAX = 10_000  # Keys with their models and nodes whose usage is not written yet.
USAGE_KEPT_DAYS = 400
USAGE_ROWS_MAX = 10_000  # Of one answer.
MODEL_NAME_CHARS_MAX = 512
NODE_LOGS_S = 15.0  # For a worker to answer with the logs of its backends.
NODE_LOGS_BYTES_MAX = 16 << 20  # Of one such answer.
LOG_TAIL_MAX = 1_000_000  # Lines that can be asked for; workers keep fewer.
LOG_READERS_MAX = 64  # Logs followed through one frontend at a time.
LOG_STREAM_ALIVE_S = 15.0  # A followed log without new lines says so this often.

# Store.
STORE_CALL_S = 10.0  # One transaction, from asking for it to its answer, waiting for a turn included.
STORE_PING_S = 2.0
STORE_OPEN_S = 60.0  # Connecting and migrating at start, waiting for another frontend's migration included.
STORE_MIGRATION_LOCK_S = 30.0  # Patience with another frontend that is migrating.
STORE_READERS_MAX = 4  # Threads, and on PostgreSQL connections.
STORE_WRITERS_MAX = 4  # The same, on PostgreSQL; SQLite has one writer by nature.
SQLITE_BUSY_S = 5.0  # Patience with another process that is writing.
POSTGRES_CONNECT_S = 5.0
POSTGRES_STATEMENT_S = 8.0  # Less than STORE_CALL_S, so that the server gives up before we do.
POSTGRES_UNACKNOWLEDGED_S = 8.0  # A server that acknowledges nothing for so long has vanished.
LIVENESS_GAP_MAX_S = 15.0  # A frontend that was quiet for longer has not been listening in between.
LIVENESS_AHEAD_MAX_S = 1.0  # Two frontends at once may see as much; more is a clock that was set back.
LIVENESS_SPANS_MAX = 256
LISTENING_LATELY_S = 60.0  # What a frontend found out about nodes counts this long after it last listened.
HISTORY_ROWS_MAX = 10_000
OPERATIONS_KEPT_MAX = 10_000  # Finished ones on backends; the oldest are forgotten first.
MODEL_OPERATIONS_KEPT_MAX = 2000  # Finished loads and unloads.
OPERATIONS_FORGOTTEN_AT_ONCE_MAX = 100
ATTEMPTS_KEPT_MAX = 50  # Of one step.
JOINED_KEYS_KEPT_MAX = 1000  # Idempotency keys of wishes that joined one operation; the newest are kept.
OPERATIONS_WAITING_MAX = 5000  # Asked for, not yet written; beyond it callers have to ask again.
OPERATIONS_PER_WRITE_MAX = 1000  # Together with their steps.
OPERATIONS_TURN_S = 300.0  # A change to operations, waiting for thousands asked for before it included.
ROWS_PER_STATEMENT_MAX = 500

# Operations.
CANARY_AWAY_S = 300.0  # A roll-out waits this long for a first node that went away; then another goes first.

# Worker.
FRONTEND_CALL_S = 10.0  # Patience with one call to the frontend.
FRONTEND_BODY_BYTES_MAX = 4 << 20
REGISTER_RETRY_FIRST_S = 2.0
REGISTER_RETRY_MOST_S = 30.0
REGISTER_WARN_AGAIN_S = 60.0  # While registering goes on failing for the same reason.
REGISTER_GAP_S = 2.0  # Between two registrations of one worker, for whatever reason.
APPROVAL_ASK_FIRST_S = 5.0
APPROVAL_ASK_MOST_S = 30.0
CREDENTIALS_REFRESH_AT = 0.75  # Share of their lifetime after which bus credentials are renewed.
CREDENTIALS_REFRESH_MIN_S = 1.0
BUS_DOWN_ASK_FIRST_S = 10.0  # With the bus down this long, the frontend is asked where it is now.
BUS_DOWN_ASK_MOST_S = 60.0
RESUBSCRIBE_FIRST_S = 2.0
RESUBSCRIBE_MOST_S = 30.0
BUS_SLOW_S = 1.5  # A first attempt to connect that takes longer is said to get no answer.
BUS_TROUBLE_AFTER_S = 3.0  # A bus that cannot be used for so long is reported to the frontend.
BUS_TROUBLE_CHARS_MAX = 500
HEARTBEAT_GAP_S = 0.25  # Between two heartbeats, however much changes.
HEARTBEAT_SPREAD = 0.1  # Share of the interval by which heartbeats come early, at random.
HARDWARE_S = 5.0  # A wedged driver may hold a question for ever.
ROUTE_LOOKUP_S = 5.0
WORKER_PORT_DEFAULT = 50051
WORKER_PORT_STEP = 100
LEAVE_S = 40.0  # All calls of an orderly stop together.
LEAVE_CALL_S = 3.0  # Service managers kill after 10 s or so: a silent frontend must not eat them all.
LEAVE_IDLE_S = 30.0  # For requests in flight to end.
LEAVE_POLL_S = 1.0
PROBE_SHUTDOWN_S = 5.0
WORKER_STOP_S = 80.0  # An orderly stop with all that is closed after it: no worker is killed earlier.

# Backend processes.
BACKEND_START_S = 30.0  # From the start of the process to its first good answer; loading a model comes later.
BACKEND_HEALTH_FIRST_S = 0.01  # While it starts, growing with its age.
BACKEND_HEALTH_MOST_S = 0.2
BACKEND_HEALTH_CALL_S = 2.0
BACKEND_WATCH_EVERY_S = 15.0  # Once it is ready.
BACKEND_WATCH_AGAIN_S = 1.0  # After a refused connection.
BACKEND_END_NOTICED_S = 1.0  # By then the end of a process is known that others have noticed.
BACKEND_REFUSALS_MAX = 3  # Refused connections in a row before a live process counts as broken.
BACKEND_FREE_S = 5.0
BACKEND_GRACE_S = 15.0  # Between SIGTERM and SIGKILL.
BACKEND_END_AGAIN_S = 5.0  # Between two attempts to end what does not end.
BACKEND_RESTART_FIRST_S = 1.0
BACKEND_RESTART_MOST_S = 60.0
BACKEND_HEALTHY_AFTER_S = 60.0  # A process that lived this long did not fail to start.
BACKEND_SHORT_LIVES_MAX = 5
BACKEND_PORTS_MAX = 4  # Tried in one start, while other programs take them.
BACKEND_STDERR_LINES = 20  # Shown with a failed start.
PORT_QUARANTINE_S = 15.0  # After use, during which the port is not given out.
PORT_AFFINITY_S = 300.0  # After use, during which others take the port only when no other is left.
BLOBS_COLLECT_EVERY_S = 6 * 3600.0
LOG_LINES_KEPT = 1000  # Per process key, in memory.
LOG_FILE_BYTES_MAX = 8 << 20  # Then the file is rotated, once.
LOG_LINE_BYTES_MAX = 16 << 10  # A longer line is shown as several.
LOG_KEPT_BYTES_MAX = 512 << 10  # Per process key, in memory, however long its lines are.
LOG_TAIL_LINES_MAX = 200  # Of each stream of one process, so that one does not drive the other out.
LOG_TAIL_BYTES_MAX = 64 << 10
LOG_FOLLOW_LINES_MAX = 1000  # Waiting for one reader; beyond them the oldest are left out.
LOG_STOPPED_KEYS_MAX = 50  # Keys without a process whose logs are kept, and how long.
LOG_STOPPED_DAYS_MAX = 14
LOG_SOCKET_PING_S = 30.0  # To clients that follow logs live.
LOG_SOCKET_PONG_S = 60.0
LOG_SOCKET_BYTES_MAX = 4 << 10  # Of one message from a reader of logs, who has nothing to say.
LOG_FILE_RETRY_S = 1.0  # Pause after a log file could not be written.
DOOR_CONNECT_S = 5.0  # To a server on this machine, a free place among the connections included.
DOOR_CONNECTIONS_MAX = 4096
DOOR_IDLE_S = 2.0  # Less than servers keep idle connections: no request meets one that is being closed.
DOOR_SILENCE_S = 3600.0  # Of a server that works on an answer; callers with less patience leave.
DOOR_STALL_S = 120.0  # A caller that takes nothing for so long holds up a server for nothing.

# Responses that are kept.
BACKGROUND_RESPONSES_MAX = 256  # Worked on by one frontend at once.
RESPONSE_LEASE_RENEWED_S = 2.0  # Then one that was cancelled on another frontend is noticed, too.
RESPONSES_SWEPT_EVERY_S = 60.0

# Start.
JOIN_S = 30.0  # How long `remuda join --service` tries to register before it gives up.
BUS_AT_START_S = 5.0  # How long a frontend waits for its bus before it answers without one.
WARNINGS_HELD_S = 30.0  # At most so long `remuda up` keeps warnings back until its banner is shown.
LOCAL_NODE_S = 15.0  # How long `remuda up` waits for its own node before it says so.
LOCAL_WORKER_STOP_S = WORKER_STOP_S  # Patience with the worker inside `remuda up` when that stops.
