"""Settings of a frontend."""

import re
from datetime import timedelta
from ipaddress import ip_network
from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from remuda.assembly.settings import forms
from remuda.assembly.settings.depot import SourceSettings
from remuda.assembly.settings.forms import Duration, File, JsonList, Port, Words
from remuda.core import durations, limits
from remuda.core.settings import Setting
from remuda.models import keep_alive as keeping
from remuda.models.keep_alive import KeepAlive
from remuda.models.source_refs import OLLAMA_HOST

_REPLY = timedelta(minutes=15)


def _networks(words: tuple[str, ...]) -> tuple[str, ...]:
    for word in words:
        ip_network(word, strict=False)  # ValueError says what is wrong with it.
    return words


def _origins(words: tuple[str, ...]) -> tuple[str, ...]:
    for word in words:
        if word != "*" and not re.fullmatch(r"https?://[A-Za-z0-9.\-\[\]:]+", word):
            raise ValueError(f"{word!r} is not an origin such as https://app.example.org, and not *")
    return tuple(word.lower() for word in words)


def _registry_host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.-]+(:\d{1,5})?", text):
        raise ValueError(f"{text!r} is not HOST or HOST:PORT")
    return text.lower()


class FrontendSettings(SourceSettings):
    host: Annotated[str, Setting("Address to listen on; anything but loopback requires keys.")] = "127.0.0.1"
    port: Annotated[Port, Setting("Port of the API; 0 picks a free one.", forms.PORT)] = 8080
    lan: Annotated[bool, Setting("Open to the local network: the same as --host 0.0.0.0.", forms.FLAG)] = (
        False
    )
    public_url: Annotated[
        str,
        Setting(
            "URL under which other machines reach this frontend, for the join line.", "http(s)://HOST[:PORT]"
        ),
    ] = ""
    allowed_hosts: Annotated[
        Words,
        Setting("Further host names by which this frontend may be called, comma-separated.", "name,name"),
    ] = ()
    tls_cert: Annotated[File | None, Setting("Certificate to serve HTTPS with, PEM.", forms.FILE)] = None
    tls_key: Annotated[File | None, Setting("Key of that certificate, PEM.", forms.FILE)] = None
    database_url: Annotated[
        SecretStr | None,
        Setting(
            "postgresql://USER:PASSWORD@HOST/NAME or sqlite:///PATH. Default: SQLite in the data folder.",
            "postgresql://... or sqlite:///PATH",
        ),
    ] = None
    model_galleries: Annotated[
        JsonList | None,
        Setting(
            "Model galleries; []: none. Without it the usual ones.",
            forms.JSON,
            aliases=("LOCALAI_GALLERIES", "GALLERIES"),
            hidden=True,
        ),
    ] = None
    model_scheduling: Annotated[
        JsonList,
        Setting(
            "Replicas declared at the start, for models for which nothing is declared yet.",
            forms.JSON,
            aliases=("LOCALAI_MODEL_SCHEDULING",),
        ),
    ] = ()
    model_scheduling_config: Annotated[
        File | None,
        Setting(
            "YAML file with such declarations.",
            forms.FILE,
            aliases=("LOCALAI_MODEL_SCHEDULING_CONFIG",),
        ),
    ] = None
    auto_approve: Annotated[
        bool | None,
        Setting(
            "Approve every worker that has the token. Default: on for `up`, off for `frontend`.",
            forms.FLAG,
            aliases=("LOCALAI_AUTO_APPROVE_NODES",),
        ),
    ] = None
    refuse_address_only: Annotated[
        bool,
        Setting(
            "Accept only nodes that prove who they are: Remuda workers, and invited peers "
            "(remuda nodes invite).",
            forms.FLAG,
        ),
    ] = False
    trusted_proxies: Annotated[
        Annotated[Words, AfterValidator(_networks)],
        Setting(
            "Proxies whose X-Forwarded-For is trusted, comma-separated.",
            "addresses or networks, such as 10.0.0.2,172.16.0.0/12",
        ),
    ] = ()
    cors_origins: Annotated[
        Annotated[Words, AfterValidator(_origins)],
        Setting(
            "Web pages that may call the API with a key, by their origins, comma-separated. Default: none.",
            "origins, such as https://app.example.org,http://localhost:5173; * with keys: every page",
            aliases=("LOCALAI_CORS_ALLOW_ORIGINS",),
        ),
    ] = ()
    node_unhealthy_after: Annotated[
        Duration, Setting("Silence after which a node is unhealthy.", durations.ACCEPTED)
    ] = timedelta(seconds=30)
    node_offline_after: Annotated[
        Duration, Setting("Silence after which a node is offline.", durations.ACCEPTED)
    ] = timedelta(seconds=60)
    nats_port: Annotated[
        Port | None,
        Setting("Port of the bundled NATS server. Default: 4222 or the next free one.", forms.PORT),
    ] = None
    nats_advertise_url: Annotated[
        str,
        Setting(
            "NATS address given to workers, where it differs from what they would guess.", "nats://HOST:PORT"
        ),
    ] = ""
    nats_account_seed: Annotated[
        SecretStr | None,
        Setting(
            "Account signing seed of an external NATS server, to mint worker credentials.",
            aliases=("LOCALAI_NATS_ACCOUNT_SEED",),
            hidden=True,
        ),
    ] = None
    nats_service_jwt: Annotated[
        SecretStr | None,
        Setting("The frontend's own NATS user JWT.", aliases=("LOCALAI_NATS_SERVICE_JWT",), hidden=True),
    ] = None
    nats_service_seed: Annotated[
        SecretStr | None, Setting("Seed of that user.", aliases=("LOCALAI_NATS_SERVICE_SEED",), hidden=True)
    ] = None
    nats_worker_jwt_ttl: Annotated[
        Duration,
        Setting(
            "Lifetime of worker credentials.",
            durations.ACCEPTED,
            aliases=("LOCALAI_NATS_WORKER_JWT_TTL",),
            hidden=True,
        ),
    ] = timedelta(hours=24)
    distributed: Annotated[
        bool,
        Setting(
            "Accepted for LocalAI; Remuda is always distributed.",
            forms.FLAG,
            aliases=("LOCALAI_DISTRIBUTED",),
            hidden=True,
        ),
    ] = True
    distributed_shared_models: Annotated[
        bool,
        Setting(
            "Nodes have this frontend's models folder under the same path.",
            forms.FLAG,
            aliases=("LOCALAI_DISTRIBUTED_SHARED_MODELS",),
        ),
    ] = False
    distributed_prefix_cache: Annotated[
        bool,
        Setting(
            "Route requests of models with `route_policy: prefix_cache` by the beginning of their prompts; "
            "off: to the least loaded replica.",
            forms.FLAG,
            aliases=("LOCALAI_DISTRIBUTED_PREFIX_CACHE",),
        ),
    ] = True
    distributed_prefix_cache_ttl: Annotated[
        Duration,
        Setting(
            "How long a replica is taken to have a prompt in its cache.",
            durations.ACCEPTED,
            aliases=("LOCALAI_DISTRIBUTED_PREFIX_CACHE_TTL",),
        ),
    ] = timedelta(minutes=5)
    distributed_disk_headroom_check: Annotated[
        bool,
        Setting(
            "Place no model on a node whose disk is too full for its backend.",
            forms.FLAG,
            aliases=("LOCALAI_DISTRIBUTED_DISK_HEADROOM_CHECK",),
        ),
    ] = True
    nats_backend_install_timeout: Annotated[
        Annotated[Duration, forms.or_usual(_REPLY)],
        Setting(
            "How long to wait for the reply to an install request; a later reply still counts.",
            durations.ACCEPTED,
            flag="backend-install-timeout",
            aliases=("LOCALAI_NATS_BACKEND_INSTALL_TIMEOUT",),
        ),
    ] = _REPLY
    nats_backend_upgrade_timeout: Annotated[
        Annotated[Duration, forms.or_usual(_REPLY)],
        Setting(
            "How long to wait for the reply to an upgrade request; a later reply still counts.",
            durations.ACCEPTED,
            flag="backend-upgrade-timeout",
            aliases=("LOCALAI_NATS_BACKEND_UPGRADE_TIMEOUT",),
        ),
    ] = _REPLY
    nodes_at_once: Annotated[
        Annotated[int, Field(ge=1, le=100_000)],
        Setting("Most nodes that one operation works on at once.", "a number from 1 to 100000"),
    ] = 300
    allow_local_sources: Annotated[
        bool,
        Setting(
            "Let admins install backends from files of the nodes' own disks, and models from the frontend's.",
            forms.FLAG,
        ),
    ] = False
    nats_model_load_timeout: Annotated[
        Duration | None,
        Setting(
            "Limit of one model load; by size when not set.",
            durations.ACCEPTED,
            flag="model-load-timeout",
            aliases=("LOCALAI_NATS_MODEL_LOAD_TIMEOUT",),
        ),
    ] = None
    model_load_wait: Annotated[
        Duration,
        Setting(
            "How long a request waits for a model that is being loaded; 0s waits for as long as it takes.",
            durations.ACCEPTED,
            aliases=("LOCALAI_MODEL_LOAD_WAIT",),
        ),
    ] = timedelta(seconds=60)
    expose_node_header: Annotated[
        bool,
        Setting(
            "Name the node that answered in a response header.",
            forms.FLAG,
            aliases=("LOCALAI_EXPOSE_NODE_HEADER",),
        ),
    ] = False
    models_path: Annotated[
        File | None,
        Setting(
            "Models folder: model files and the YAML that describes them. Default: in the data folder.",
            forms.FILE,
            aliases=("LOCALAI_MODELS_PATH", "MODELS_PATH"),
        ),
    ] = None
    credentials_file: Annotated[
        File | None,
        Setting(
            "File with credentials of the places that models come from. Default: credentials.toml in the "
            "data folder.",
            forms.FILE,
        ),
    ] = None
    ollama_registry: Annotated[
        Annotated[str, AfterValidator(_registry_host)],
        Setting("Registry that ollama:// means.", "HOST[:PORT]", hidden=True),
    ] = OLLAMA_HOST
    keep_alive: Annotated[
        KeepAlive,
        Setting(
            "Unload a model after this long without a request. Models may override it.", keeping.ACCEPTED
        ),
    ] = timedelta(minutes=30)
    requests_waiting_max: Annotated[
        Annotated[int, Field(ge=0, le=100_000)],
        Setting("Most requests that may wait for one model, busy or loading.", "a number from 0 to 100000"),
    ] = 512
    request_wait: Annotated[
        Duration, Setting("How long a request waits for a busy replica.", durations.ACCEPTED)
    ] = timedelta(seconds=60)
    work_check: Annotated[
        Duration,
        Setting(
            "How often an idle replica is asked for a token, to see that it still works; 0: never.",
            durations.ACCEPTED,
        ),
    ] = timedelta(minutes=2)
    answer_silence: Annotated[
        Duration,
        Setting(
            "How long a backend may be silent during a streamed answer. A long prompt on a slow "
            "machine takes minutes.",
            durations.ACCEPTED,
        ),
    ] = timedelta(minutes=5)
    answer_limit: Annotated[
        Duration,
        Setting("How long a backend may take for an answer that is not streamed.", durations.ACCEPTED),
    ] = timedelta(hours=1)
    request_bytes_max: Annotated[
        Annotated[int, Field(ge=1024, le=1 << 32)],
        Setting("Largest body of an inference request in bytes, images included.", "a number of bytes"),
    ] = limits.INFERENCE_BODY_BYTES_MAX
    fetch_links: Annotated[
        bool,
        Setting(
            "Fetch the pictures and sounds that requests link to, instead of refusing links. Addresses on "
            "this machine and its network card are left out, unless requests come from this machine only.",
            forms.FLAG,
        ),
    ] = False
    response_retention: Annotated[
        Duration,
        Setting(
            "How long responses (of OpenAI's Responses API) are kept after their last use.",
            durations.ACCEPTED,
        ),
    ] = timedelta(days=30)
    response_bytes_max: Annotated[
        Annotated[int, Field(ge=1024, le=1 << 40)],
        Setting("Most bytes of responses kept for one key; the oldest go first.", "a number of bytes"),
    ] = 256 << 20
    shutdown_grace: Annotated[
        Duration,
        Setting("How long answers in progress may continue when the frontend stops.", durations.ACCEPTED),
    ] = timedelta(seconds=30)
    file_transfer_timeout: Annotated[
        Duration | None,
        Setting(
            "How long nothing may move in a transfer of a model's file to object storage or to a LocalAI "
            "worker before it is given up, to be tried again later. What moves may take as long as it "
            "takes. Without it: 1m to storage, 5m to a worker.",
            durations.ACCEPTED,
            aliases=("LOCALAI_FILE_TRANSFER_TIMEOUT",),
            hidden=True,
        ),
    ] = None
    file_transfer_retries: Annotated[
        int | None,
        Setting(
            "How often a part of a model's file is sent to object storage before its upload is given up "
            "until the next round, which goes on where this one was. Without it: 4.",
            "a number",
            aliases=("LOCALAI_FILE_TRANSFER_RETRIES",),
            hidden=True,
        ),
    ] = None

    @model_validator(mode="after")
    def _frontend_fits_together(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls-cert and tls-key go together; set both or neither")
        if not timedelta(0) < self.node_unhealthy_after <= self.node_offline_after:
            raise ValueError("node-unhealthy-after must be above zero and at most node-offline-after")
        if (self.nats_service_jwt is None) != (self.nats_service_seed is None):
            raise ValueError("nats-service-jwt and nats-service-seed go together; set both or neither")
        if self.nats_url is None and self.nats_account_seed is not None:
            raise ValueError("nats-account-seed belongs to an external server; set nats-url too")
        return self
