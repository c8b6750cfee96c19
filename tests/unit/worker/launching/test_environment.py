"""No secret of the fleet reaches a backend through its environment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.worker.launching.environment import scrubbed

TOKEN = "a-registration-token"
NAMES = st.text(alphabet="ABCDEFGHIJKLMNOPQRSTUVWXYZ_", min_size=1, max_size=12)


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "HF_HOME",
        "HF_TOKEN",
        "CUDA_VISIBLE_DEVICES",
        "LD_LIBRARY_PATH",
        "NVIDIA_VISIBLE_DEVICES",
        "http_proxy",
        "LOCALAI_BACKEND_PARENT_WATCH",
        "LOCALAI_BACKEND_PARENT_WATCH_INTERVAL",
    ],
)
def test_what_a_backend_needs_is_kept(name: str) -> None:
    assert scrubbed({name: "value"}, [TOKEN]) == {name: "value"}


@pytest.mark.parametrize(
    "name",
    [
        "REMUDA_TOKEN",
        "LOCALAI_REGISTRATION_TOKEN",
        "LOCALAI_GRPC_AUTH_TOKEN",
        "LOCALAI_STORAGE_SECRET_KEY",
        "NATS_SEED",
        "AWS_SECRET_ACCESS_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "PGPASSWORD",
        "DATABASE_URL",
        "NOTIFY_SOCKET",
        "LISTEN_FDS",
    ],
)
def test_settings_and_credentials_are_dropped(name: str) -> None:
    assert scrubbed({name: "value", "PATH": "/bin"}, []) == {"PATH": "/bin"}


def test_a_secret_under_any_name_is_dropped() -> None:
    environ = {"MY_TOKEN": TOKEN, "URL": f"http://u:{TOKEN}@host", "OTHER": "a-registration"}
    assert scrubbed(environ, [TOKEN]) == {"OTHER": "a-registration"}


def test_a_short_secret_does_not_take_everything_with_it() -> None:
    assert scrubbed({"PATH": "/bin", "X": "bin"}, ["bin", ""]) == {"PATH": "/bin"}


@given(st.dictionaries(NAMES, st.text(max_size=30)), st.lists(st.text(min_size=8, max_size=12), max_size=3))
def test_no_value_that_is_left_holds_a_secret(environ: dict[str, str], secrets: list[str]) -> None:
    leaking = environ | {f"LEAK_{index}": f"<{secret}>" for index, secret in enumerate(secrets)}
    left = scrubbed(leaking, secrets)
    assert left.items() <= environ.items()
    assert not any(secret in value for value in left.values() for secret in secrets)
