"""Settings of a worker."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, SecretStr, model_validator

from remuda.assembly.settings import forms
from remuda.assembly.settings.depot import DepotSettings
from remuda.assembly.settings.forms import (
    BudgetSetting,
    DiskBudgetSetting,
    Duration,
    File,
    FrontendUrl,
    HostPort,
    JsonList,
    LabelSetting,
    NodeName,
    Port,
    RamBudgetSetting,
    VariableNames,
    Words,
)
from remuda.assembly.settings.shared import registration_token
from remuda.core import durations
from remuda.core.errors import Misconfigured
from remuda.core.settings import Setting


class WorkerSettings(DepotSettings):
    register_to: Annotated[
        FrontendUrl,
        Setting("URL of the frontend.", "http(s)://HOST[:PORT]", aliases=("LOCALAI_REGISTER_TO",)),
    ] = ""
    ca: Annotated[
        File | None, Setting("PEM file of the CA that signed the frontend's certificate.", forms.FILE)
    ] = None
    node_name: Annotated[
        NodeName,
        Setting(
            "Name of this node. Default: the host name.",
            forms.NODE_NAME,
            flag="name",
            aliases=("LOCALAI_NODE_NAME",),
        ),
    ] = ""
    node_labels: Annotated[
        LabelSetting,
        Setting("Labels of this node.", "k=v,k=v", flag="labels", aliases=("LOCALAI_NODE_LABELS",)),
    ] = Field(default_factory=dict)
    addr: Annotated[
        HostPort,
        Setting(
            "Reachable HOST:PORT; its port is the first one for backends.",
            forms.HOST_PORT,
            aliases=("LOCALAI_ADDR",),
        ),
    ] = ""
    serve_addr: Annotated[
        HostPort,
        Setting("Fallback for that port.", forms.HOST_PORT, aliases=("LOCALAI_SERVE_ADDR",), hidden=True),
    ] = ""
    advertise_addr: Annotated[
        HostPort,
        Setting(
            "HOST:PORT under which frontends reach backends here.",
            forms.HOST_PORT,
            aliases=("LOCALAI_ADVERTISE_ADDR",),
        ),
    ] = ""
    http_addr: Annotated[
        HostPort,
        Setting(
            "HOST:PORT of this worker's own HTTP server.", forms.HOST_PORT, aliases=("LOCALAI_HTTP_ADDR",)
        ),
    ] = ""
    advertise_http_addr: Annotated[
        HostPort,
        Setting(
            "HOST:PORT under which frontends reach that server.",
            forms.HOST_PORT,
            aliases=("LOCALAI_ADVERTISE_HTTP_ADDR",),
        ),
    ] = ""
    heartbeat_interval: Annotated[
        Duration,
        Setting("Time between heartbeats.", durations.ACCEPTED, aliases=("LOCALAI_HEARTBEAT_INTERVAL",)),
    ] = timedelta(seconds=10)
    max_replicas_per_model: Annotated[
        Annotated[int, Field(ge=1, le=1000)],
        Setting(
            "Most replicas of one model here.",
            "a number from 1 to 1000",
            aliases=("LOCALAI_MAX_REPLICAS_PER_MODEL",),
        ),
    ] = 1
    vram_budget: Annotated[
        BudgetSetting,
        Setting("Most VRAM to use, such as 80% or 12GB.", forms.BUDGET, aliases=("LOCALAI_VRAM_BUDGET",)),
    ] = ""
    ram_budget: Annotated[
        RamBudgetSetting,
        Setting("Most RAM for models, such as 50% or 16GB. Default: all that is free.", forms.BUDGET),
    ] = ""
    model_files_budget: Annotated[
        DiskBudgetSetting,
        Setting(
            "Most disk for model files fetched here, such as 200GB or 50%; the least recently used go first. "
            "Default: as much as fits.",
            forms.DISK_BUDGET,
        ),
    ] = ""
    nats_jwt: Annotated[
        SecretStr | None,
        Setting("This worker's own NATS user JWT.", aliases=("LOCALAI_NATS_JWT",), hidden=True),
    ] = None
    nats_user_seed: Annotated[
        SecretStr | None, Setting("Seed of that user.", aliases=("LOCALAI_NATS_USER_SEED",), hidden=True)
    ] = None
    models_path: Annotated[
        File | None,
        Setting(
            "Models folder: model files and the YAML that describes them. Default: in the data folder.",
            forms.FILE,
            aliases=("LOCALAI_MODELS_PATH", "MODELS_PATH"),
        ),
    ] = None
    backends_path: Annotated[
        File | None,
        Setting(
            "Folder of installed backends.",
            forms.FILE,
            aliases=("LOCALAI_BACKENDS_PATH", "BACKENDS_PATH"),
        ),
    ] = None
    backends_system_path: Annotated[
        File,
        Setting(
            "Folder of read-only system backends.",
            forms.FILE,
            aliases=("LOCALAI_BACKENDS_SYSTEM_PATH",),
            hidden=True,
        ),
    ] = Path("/var/lib/local-ai/backends")
    backend_env: Annotated[
        VariableNames,
        Setting(
            "Further environment variables that backends may see, such as HF_TOKEN or VLLM_*. Without it: "
            "paths, locale, proxies, CA bundles, and the variables of accelerators and frameworks.",
            forms.VARIABLES,
        ),
    ] = ()
    backend_nice: Annotated[
        Annotated[int, Field(ge=0, le=19)],
        Setting(
            "How far backends give way to other programs on this machine: 0 is not at all, 19 is whenever "
            "anything else wants the processor.",
            "a number from 0 to 19",
        ),
    ] = 0
    yield_gpu: Annotated[
        bool,
        Setting(
            "Give way to the owner's programs: while they use the GPU (NVIDIA), no model is loaded into it, "
            "and idle ones are unloaded.",
            forms.FLAG,
        ),
    ] = False
    grpc_max_port: Annotated[
        Port,
        Setting(
            "Last port for backends; 0: no limit.",
            forms.PORT,
            aliases=("LOCALAI_GRPC_MAX_PORT",),
            hidden=True,
        ),
    ] = 0
    galleries: Annotated[
        JsonList,
        Setting(
            "Model galleries.",
            forms.JSON,
            aliases=("LOCALAI_GALLERIES",),
            hidden=True,
            no_effect_yet=forms.MODEL_GALLERIES,
        ),
    ] = ()
    prefetch_models: Annotated[
        Words,
        Setting(
            "Models to fetch at start.",
            "name,name",
            aliases=("LOCALAI_PREFETCH_MODELS",),
            hidden=True,
            no_effect_yet=forms.MODEL_GALLERIES,
        ),
    ] = ()
    require_backend_integrity: Annotated[
        bool,
        Setting(
            "Refuse backends that cannot be verified.",
            forms.FLAG,
            aliases=("LOCALAI_REQUIRE_BACKEND_INTEGRITY",),
            hidden=True,
        ),
    ] = False

    @model_validator(mode="after")
    def _worker_fits_together(self) -> Self:
        if (self.nats_jwt is None) != (self.nats_user_seed is None):
            raise ValueError("nats-jwt and nats-user-seed go together; set both or neither")
        if self.heartbeat_interval < timedelta(milliseconds=100):
            raise ValueError("heartbeat-interval must be at least 100ms")
        return self


def required_frontend(settings: WorkerSettings) -> str:
    """Light, like the next: commands refuse before they import what takes seconds."""
    if not settings.register_to:
        raise Misconfigured(
            "this machine has not joined a fleet",
            hint="remuda join URL --token TOKEN, or set REMUDA_REGISTER_TO",
        )
    return settings.register_to


def required_token(settings: WorkerSettings) -> SecretStr | None:
    """None only where the settings say that the frontend has no token."""
    token = registration_token(settings)
    if token is None and not settings.insecure_no_token:
        raise Misconfigured(
            "a registration token is needed",
            hint="give it with --token or REMUDA_REGISTRATION_TOKEN (`remuda join-line` on the frontend's "
            "machine shows it); use --insecure-no-token for a frontend without one",
        )
    return token
