"""What of the worker's environment a backend gets to see: everything but the fleet's secrets. Pure."""

from collections.abc import Collection, Mapping
from typing import Final

_KEPT: Final = "LOCALAI_BACKEND_PARENT_WATCH"  # How a backend notices that its worker is gone.
_SETTINGS: Final = ("REMUDA_", "LOCALAI_", "NATS_")  # The worker's own; some of them are secrets.
_CREDENTIALS: Final = (
    "AWS_",
    "AZURE_",
    "B2_",
    "DATABASE_URL",
    "DOCKER_AUTH_CONFIG",
    "GCS_",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "MINIO_",
    "PGPASS",
    "POSTGRES_",
    "RCLONE_",
    "REGISTRY_AUTH_FILE",
    "S3_",
    "SSH_AUTH_SOCK",
)
# Between a service manager and the process it started, which the backend is not.
_SERVICE: Final = ("CREDENTIALS_DIRECTORY", "LISTEN_FD", "LISTEN_PID", "NOTIFY_SOCKET", "WATCHDOG_")
_DROPPED: Final = (*_SETTINGS, *_CREDENTIALS, *_SERVICE)
_TELLING_CHARS: Final = 8  # A shorter secret may stand in any text by accident.


def scrubbed(environ: Mapping[str, str], secrets: Collection[str]) -> dict[str, str]:
    """The environment for a backend: without the worker's settings, credentials for storage and registries,
    and whatever else holds one of `secrets`."""
    return {
        name: value
        for name, value in environ.items()
        if _harmless(name) and not any(_reveals(value, secret) for secret in secrets)
    }


def _harmless(name: str) -> bool:
    return name.startswith(_KEPT) or not name.startswith(_DROPPED)


def _reveals(value: str, secret: str) -> bool:
    return secret in value if len(secret) >= _TELLING_CHARS else bool(secret) and value == secret
