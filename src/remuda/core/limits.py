"""Every bound in the system, named with its unit. Nothing waits, queues or grows without one."""

# Fleet.
HEARING_EVERY_S = 5.0  # How often a frontend proves to itself that it can hear the fleet.
HEARING_ROUND_TRIP_S = 2.0  # Patience with one such proof.
HEARTBEATS_WAITING_MAX = (
    10_000  # Heartbeats taken in but not yet written; beyond it senders are told to retry.
)
HEARTBEATS_PER_WRITE_MAX = 500
HEARTBEAT_WRITE_S = 10.0  # A worker gives up on a heartbeat after this long, so later is never.
DIAL_EVERY_S = 60.0  # How often a node that answered is called again.
DIAL_RETRY_EVERY_S = 15.0
DIAL_S = 3.0
DIALS_AT_ONCE_MAX = 16
BYTES_REPORTED_MAX = 1 << 60  # More RAM, VRAM or disk than this is a mistake, not a machine.
HISTORY_PAGE_MAX = 500

# Gateway.
BODY_BYTES_MAX = 1 << 20
BODY_READ_S = 30.0
KEYS_REFRESH_EVERY_S = 5.0  # How late a key revoked on another frontend may still work.
READINESS_S = 2.0
SHUTDOWN_S = 10.0  # Requests in flight get this long when a frontend stops.
KEY_NAME_CHARS_MAX = 100
