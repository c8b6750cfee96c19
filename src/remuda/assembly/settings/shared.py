"""Settings of every process: each is declared once, with its names, meaning and accepted form."""

from typing import Annotated, Literal, Self

from platformdirs import user_data_path
from pydantic import Field, SecretStr, model_validator

from remuda.assembly.settings import forms
from remuda.assembly.settings.forms import File, StorageUrl
from remuda.core.errors import Misconfigured
from remuda.core.settings import Setting, Settings


class CommonSettings(Settings):
    data_dir: Annotated[File, Setting("Folder for everything this machine keeps.", forms.FILE)] = Field(
        default_factory=lambda: user_data_path("remuda")
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Setting("Lowest severity to log.", "debug, info, warning or error"),
    ] = "info"
    log_format: Annotated[
        Literal["auto", "console", "json"],
        Setting("Log format; auto: console on a terminal, otherwise JSON.", "auto, console or json"),
    ] = "auto"
    registration_token: Annotated[
        SecretStr | None,
        Setting(
            "Shared secret that workers register with. Better given by environment or file than on the "
            "command line.",
            flag="token",
            aliases=("LOCALAI_REGISTRATION_TOKEN",),
        ),
    ] = None
    registration_token_file: Annotated[
        File | None, Setting("File that holds the registration token.", forms.FILE, flag="token-file")
    ] = None
    insecure_no_token: Annotated[
        bool,
        Setting(
            "Work with peers that have no registration token. Anyone who can connect may join.", forms.FLAG
        ),
    ] = False
    registration_require_auth: Annotated[
        bool,
        Setting(
            "Refuse to start without a registration token (always so, unless --insecure-no-token).",
            forms.FLAG,
            aliases=("LOCALAI_REGISTRATION_REQUIRE_AUTH", "LOCALAI_DISTRIBUTED_REQUIRE_AUTH"),
            hidden=True,
        ),
    ] = False
    nats_url: Annotated[
        SecretStr | None,
        Setting(
            "An external NATS server, nats://HOST:PORT or tls://HOST:PORT. "
            "Without it a frontend runs its own, and a worker learns the address from the frontend.",
            aliases=("LOCALAI_NATS_URL",),
        ),
    ] = None
    nats_user: Annotated[str, Setting("User name at an external NATS server.")] = ""
    nats_password: Annotated[
        SecretStr | None, Setting("Password at an external NATS server.", hidden=True)
    ] = None
    nats_creds: Annotated[File | None, Setting("NATS credentials file (.creds).", forms.FILE)] = None
    nats_tls_ca: Annotated[
        File | None,
        Setting(
            "PEM file of the CA that signed the NATS certificate.",
            forms.FILE,
            aliases=("LOCALAI_NATS_TLS_CA",),
        ),
    ] = None
    nats_tls_cert: Annotated[
        File | None,
        Setting("Client certificate for NATS, PEM.", forms.FILE, aliases=("LOCALAI_NATS_TLS_CERT",)),
    ] = None
    nats_tls_key: Annotated[
        File | None, Setting("Key of that certificate, PEM.", forms.FILE, aliases=("LOCALAI_NATS_TLS_KEY",))
    ] = None
    nats_require_auth: Annotated[
        bool,
        Setting(
            "Frontend: start only if it can issue bus credentials. Worker: wait for credentials.",
            forms.FLAG,
            aliases=("LOCALAI_NATS_REQUIRE_AUTH", "LOCALAI_DISTRIBUTED_REQUIRE_AUTH"),
        ),
    ] = False
    storage_url: Annotated[
        StorageUrl,
        Setting(
            "S3 endpoint. Frontends put the files of installed models there, from where workers fetch them.",
            forms.STORAGE_URL,
            aliases=("LOCALAI_STORAGE_URL",),
            hidden=True,
        ),
    ] = ""
    storage_bucket: Annotated[
        str, Setting("Its bucket.", aliases=("LOCALAI_STORAGE_BUCKET",), hidden=True)
    ] = "localai"
    storage_region: Annotated[
        str, Setting("Its region.", aliases=("LOCALAI_STORAGE_REGION",), hidden=True)
    ] = "us-east-1"
    storage_access_key: Annotated[
        SecretStr | None,
        Setting(
            "Access key for it; without one requests are not signed.",
            aliases=("LOCALAI_STORAGE_ACCESS_KEY",),
            hidden=True,
        ),
    ] = None
    storage_secret_key: Annotated[
        SecretStr | None,
        Setting("Secret key for it.", aliases=("LOCALAI_STORAGE_SECRET_KEY",), hidden=True),
    ] = None

    @model_validator(mode="after")
    def _nats_certificate_is_whole(self) -> Self:
        if (self.nats_tls_cert is None) != (self.nats_tls_key is None):
            raise ValueError("nats-tls-cert and nats-tls-key go together; set both or neither")
        return self

    @model_validator(mode="after")
    def _storage_keys_are_whole(self) -> Self:
        if (self.storage_access_key is None) != (self.storage_secret_key is None):
            raise ValueError("storage-access-key and storage-secret-key go together; set both or neither")
        return self


def registration_token(settings: CommonSettings) -> SecretStr | None:
    """The token itself, or else what its file holds; None when neither is set."""
    path = settings.registration_token_file
    if settings.registration_token is not None or path is None:
        return settings.registration_token
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Misconfigured(f"the token file {path} cannot be read: {reason}") from None
    if not token:
        raise Misconfigured(f"the token file {path} is empty", hint="put the registration token into it")
    return SecretStr(token)
