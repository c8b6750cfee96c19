"""Credentials as docker and its relatives keep them: config.json, and the helper programs it names.

Only reads; logging in is those tools' work.
"""

import base64
import binascii
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio
import structlog
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from remuda.core.errors import Misconfigured
from remuda.oci import limits
from remuda.oci.reference import DOCKER_HUB

log = structlog.get_logger(__name__)

_HUB_KEY = "https://index.docker.io/v1/"
_TOKEN_USER = "<token>"
_PROGRAM_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and a password, or an identity token that stands for both."""

    username: str
    password: SecretStr
    identity_token: SecretStr | None = None


class _Auth(BaseModel):
    auth: SecretStr = SecretStr("")
    username: str = ""
    password: SecretStr = SecretStr("")
    identity_token: SecretStr = Field(SecretStr(""), alias="identitytoken")


class _DockerConfig(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    auths: Mapping[str, _Auth] = {}
    helpers: Mapping[str, str] = Field({}, alias="credHelpers")
    store: str = Field("", alias="credsStore")


class _HelperReply(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    username: str = Field("", alias="Username")
    secret: SecretStr = Field(SecretStr(""), alias="Secret")


class NoKeys:
    """For anonymous use."""

    async def find(self, registry: str) -> Credentials | None:
        return None


class Keychain:
    """Looks into the first of `files` that names the registry. `env` is what helper programs run with."""

    def __init__(self, files: tuple[Path, ...], env: Mapping[str, str]) -> None:
        self._files = files
        self._env = env

    async def find(self, registry: str) -> Credentials | None:
        """None when nothing is kept for the registry. Misconfigured when a file cannot be used."""
        for file in self._files:
            config = await anyio.to_thread.run_sync(_read, file)
            found = await self._in_config(config, registry) if config is not None else None
            if found is not None:
                return found
        return None

    async def _in_config(self, config: _DockerConfig, registry: str) -> Credentials | None:
        key = _HUB_KEY if registry == DOCKER_HUB else registry
        helper = config.helpers.get(registry) or config.helpers.get(key) or config.store
        found = await self._ask_helper(helper, key) if helper else None
        if found is not None:
            return found
        for name, auth in config.auths.items():
            if _host(name) == _host(key):
                return _from_auth(auth)
        return None

    async def _ask_helper(self, helper: str, key: str) -> Credentials | None:
        program = f"docker-credential-{helper}"
        if not set(helper) <= _PROGRAM_NAME_CHARS:
            raise Misconfigured(f"{program!r} in docker's config.json is not the name of a program")
        try:
            with anyio.fail_after(limits.CREDENTIAL_HELPER_S):
                done = await anyio.run_process(
                    [program, "get"],
                    input=key.encode(),
                    env=self._env,
                    check=False,
                    stderr=subprocess.DEVNULL,
                )
        except TimeoutError:
            # As good as absent: a key ring that waits for a click must not keep public images away.
            log.warning("credential_helper_timed_out", program=program, limit_s=limits.CREDENTIAL_HELPER_S)
            return None
        except OSError as error:
            log.warning("credential_helper_failed", program=program, reason=error.strerror)
            return None
        if done.returncode != 0:  # The usual way of saying that it knows nothing of this registry.
            log.debug("credential_helper_refused", program=program, code=done.returncode)
            return None
        return _from_helper(program, done.stdout)


def docker_config_files(env: Mapping[str, str]) -> tuple[Path, ...]:
    """Where docker, and then podman and skopeo, keep credentials in this environment."""
    home = env.get("HOME")
    folders = [
        (env.get("DOCKER_CONFIG") or (home and f"{home}/.docker"), "config.json"),
        (env.get("XDG_RUNTIME_DIR"), "containers/auth.json"),
        (env.get("XDG_CONFIG_HOME") or (home and f"{home}/.config"), "containers/auth.json"),
    ]
    return tuple(Path(folder) / name for folder, name in folders if folder)


def _read(file: Path) -> _DockerConfig | None:
    try:
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Misconfigured(
            f"{file} cannot be read: {error.strerror}", hint="correct its permissions"
        ) from error
    try:
        return _DockerConfig.model_validate(json.loads(text))
    except (ValueError, ValidationError, RecursionError):
        # Without its cause: that quotes the file, and the file holds passwords.
        raise Misconfigured(f"{file} is not a docker configuration", hint="correct or remove it") from None


def _from_auth(auth: _Auth) -> Credentials | None:
    token = auth.identity_token if auth.identity_token.get_secret_value() else None
    username, password = auth.username, auth.password
    if packed := auth.auth.get_secret_value():
        try:
            name, _, secret = base64.b64decode(packed, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise Misconfigured("an `auth` in docker's config.json is not base64") from None
        username, password = name, SecretStr(secret.rstrip("\0"))
    if not username and token is None:
        return None  # As `docker login` leaves it behind where a helper keeps the secret.
    return Credentials(username, password, token)


def _from_helper(program: str, output: bytes) -> Credentials | None:
    try:
        reply = _HelperReply.model_validate_json(output[: limits.CREDENTIAL_BYTES_MAX])
    except ValidationError:
        log.warning("credential_helper_failed", program=program, reason="its answer is not JSON")
        return None
    if reply.username == _TOKEN_USER:
        return Credentials("", SecretStr(""), reply.secret)
    return Credentials(reply.username, reply.secret) if reply.username else None


def _host(key: str) -> str:
    """`https://quay.io/v2/` and `quay.io` mean the same registry."""
    return key.partition("://")[2].partition("/")[0] if "://" in key else key.partition("/")[0]
