"""Every bound of the OCI client, named with its unit. There is no limit on how long bytes may take to arrive,
only on how long none does."""

from datetime import timedelta

from remuda.core.retry import Backoff

CONNECT_S = 15.0
IDLE_READ_S = 60.0  # A connection that brings nothing for so long is given up and its download resumed.
SMALL_CALL_S = 120.0  # One question with a small answer: a manifest, a token, a tag's digest.
READ_BUFFER_BYTES = 128 << 10  # Per connection; what arrives while the disk is busy.
CONNECTIONS_PER_HOST_MAX = 16
LAYERS_AT_ONCE_MAX = 4
REDIRECTS_MAX = 5
ATTEMPTS_MAX = 6  # In a row without one new byte.
BACKOFF = Backoff(first=timedelta(seconds=1), most=timedelta(seconds=30))
RETRY_AFTER_MAX = timedelta(minutes=5)  # A registry that asks for more is not waited for.

MANIFEST_BYTES_MAX = 4 << 20
CONFIG_BYTES_MAX = 8 << 20
TOKEN_BYTES_MAX = 1 << 20
ERROR_BYTES_MAX = 64 << 10
LAYERS_MAX = 1_000
INDEX_ENTRIES_MAX = 1_000
INDEX_DEPTH_MAX = 3
REFERENCE_CHARS_MAX = 1_024
REPOSITORY_CHARS_MAX = 255
TAG_CHARS_MAX = 128

TOKEN_LIFE_DEFAULT_S = 60.0  # Of a token that does not say how long it lives.
TOKEN_MARGIN_S = 10.0  # A token about to end is not used for a new request.
CREDENTIAL_HELPER_S = 30.0
CREDENTIAL_BYTES_MAX = 1 << 20

CLAIM_POLL_S = 0.1  # How often a download that another task or process works on is looked at.
CLAIM_STALL_S = 600.0  # A claim without a new byte for so long is stuck.
COPY_BYTES = 1 << 20
CHUNKS_BEHIND_MAX = 2  # Of a download, arrived and not yet written: what a killed process loses.
ARCHIVE_MEMBERS_MAX = 10_000  # Of an image saved to a file; a real one has a few per layer.

MARGIN_SHARE = 0.05
MARGIN_BYTES_MIN = 1 << 30
UNKNOWN_PAYLOAD_BYTES = 2 << 30
