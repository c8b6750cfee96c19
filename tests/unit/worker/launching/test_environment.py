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
        "HF_HUB_OFFLINE",
        "HSA_OVERRIDE_GFX_VERSION",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "ONEAPI_DEVICE_SELECTOR",
        "VK_ICD_FILENAMES",
        "OMP_NUM_THREADS",
        "LC_ALL",
        "TZ",
        "TMPDIR",
        "SSL_CERT_FILE",
        "REQUESTS_CA_BUNDLE",
        "AWS_CA_BUNDLE",
        "LOCALAI_LOG_LEVEL",
        "HTTPS_PROXY",
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
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "CUDA_API_KEY",
        "OPENAI_API_KEY",
        "MY_COMPANYS_PASSPHRASE",
        "KUBECONFIG",
        "SSH_AUTH_SOCK",
        "NOTIFY_SOCKET",
        "LISTEN_FDS",
    ],
)
def test_everything_else_is_dropped(name: str) -> None:
    assert scrubbed({name: "value", "PATH": "/bin"}, []) == {"PATH": "/bin"}


def test_a_setting_names_what_else_is_passed_on() -> None:
    environ = {"HF_TOKEN": "a", "VLLM_USE_V1": "b", "VLLM_API_KEY": "c", "VLLMS": "d"}

    assert scrubbed(environ, [], ["HF_TOKEN", "VLLM_*"]) == {
        "HF_TOKEN": "a",
        "VLLM_USE_V1": "b",
        "VLLM_API_KEY": "c",
    }


def test_a_secret_of_the_fleet_is_dropped_under_any_name() -> None:
    environ = {"MY_TOKEN": TOKEN, "HTTP_PROXY": f"http://u:{TOKEN}@host", "OTHER": "a-registration"}
    assert scrubbed(environ, [TOKEN], ["MY_TOKEN", "OTHER"]) == {"OTHER": "a-registration"}


def test_a_short_secret_does_not_take_everything_with_it() -> None:
    assert scrubbed({"PATH": "/bin", "TZ": "bin"}, ["bin", ""]) == {"PATH": "/bin"}


@given(st.dictionaries(NAMES, st.text(max_size=30)), st.lists(st.text(min_size=8, max_size=12), max_size=3))
def test_no_value_that_is_left_holds_a_secret(environ: dict[str, str], secrets: list[str]) -> None:
    leaking = environ | {f"LEAK_{index}": f"<{secret}>" for index, secret in enumerate(secrets)}
    left = scrubbed(leaking, secrets, ["*"])
    assert left.items() <= environ.items()
    assert not any(secret in value for value in left.values() for secret in secrets)
