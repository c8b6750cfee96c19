"""Every setting changes something: with it the composition roots build other objects than without it.

Two frontends are started, one by the defaults and one with every setting changed at once, and two workers are
built. For each setting the table says in which attribute of which class its value arrives. A setting without
an entry fails.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network
from pathlib import Path

import anyio
import pytest
import trustme
from pydantic import SecretStr

from remuda.assembly import addresses
from remuda.assembly.bus import BusPlanner
from remuda.assembly.frontend import admission_policy, running_frontend
from remuda.assembly.running import log_style
from remuda.assembly.scheduling_seeds import seeds_of
from remuda.assembly.settings import FrontendSettings, UpSettings, WorkerSettings
from remuda.assembly.settings.shared import registration_token
from remuda.assembly.up import worker_environment
from remuda.assembly.worker import _assemble, _config, _own_login, inventory_of, open_backend_runtimes
from remuda.bus.credentials import ClusterKeys
from remuda.core import durations
from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.errors import Misconfigured
from remuda.core.ids import FrontendId
from remuda.core.settings import Settings, described, resolve
from remuda.gallery.model import Gallery
from remuda.gateway.services import Services
from remuda.host.folder import DataFolder
from remuda.host.ports import free_port
from remuda.scheduler.scheduling import SchedulingTerms
from remuda.worker.addresses import Listening
from remuda.worker.hardware.detect import HardwareInventory
from remuda.worker.hardware.host import SystemHost
from tests.support.object_graph import Attributes, attributes, running_things

ROOT = Path(__file__).resolve().parents[3]
HOST = "127.0.0.2"
GALLERY = {"name": "of-the-test", "url": "file:///nowhere/index.yaml"}


@dataclass(frozen=True, slots=True)
class Wired:
    """`given` to the setting, `arrives` in an attribute, as it is or as `becomes` says."""

    given: object
    arrives: str
    becomes: object = ...


@dataclass(frozen=True, slots=True)
class Told:
    """What the frontend says of itself."""

    bus_url: str
    local_port: int


@dataclass(frozen=True, slots=True)
class Proven:
    """By another test, which starts a process with the setting."""

    by: str


@dataclass(frozen=True, slots=True)
class Inert:
    """It is accepted, and changes nothing on purpose."""

    why: str


Entry = Wired | Proven | Inert | Callable[[Path], None]


def minutes(count: int) -> timedelta:
    return timedelta(minutes=count)


def _lan(_: Path) -> None:
    assert addresses.bind_host(FrontendSettings(lan=True)) == "0.0.0.0"
    assert addresses.bind_host(FrontendSettings()) == "127.0.0.1"


def _auto_approve(_: Path) -> None:
    for chosen in (True, False):
        policy = admission_policy(FrontendSettings(auto_approve=chosen), otherwise=not chosen)
        assert policy.auto_approve is chosen
    assert admission_policy(FrontendSettings(), otherwise=True).auto_approve


def _log_level(_: Path) -> None:
    chosen = resolve(FrontendSettings, flags={"log_level": "debug"}, environ={})
    assert log_style(chosen)[0] == "debug"


def _log_format(_: Path) -> None:
    chosen = resolve(FrontendSettings, flags={"log_format": "console"}, environ={})
    assert log_style(chosen)[1] == "console"
    assert log_style(resolve(FrontendSettings, flags={}, environ={}))[1] == "json"


def _token_file(folder: Path) -> None:
    file = folder / "token"
    file.write_text("from a file")
    found = registration_token(FrontendSettings(registration_token_file=file))
    assert found is not None
    assert found.get_secret_value() == "from a file"


def _scheduling_config(folder: Path) -> None:
    file = folder / "scheduling.yaml"
    file.write_text("- {model_name: m, spread_all: true}\n")
    seeds = seeds_of(FrontendSettings(model_scheduling_config=file))
    assert seeds == {"m": SchedulingTerms(everywhere=True)}


def _ram_budget(folder: Path) -> None:
    settings = WorkerSettings.model_validate({"ram_budget": "25%"})
    inventory = inventory_of(settings, folder)
    assert inventory.ram_budget(1 << 30) == 1 << 28


def _require_auth(folder: Path) -> None:
    settings = FrontendSettings(nats_url=SecretStr("nats://bus.test:4222"), nats_require_auth=True)
    with pytest.raises(Misconfigured, match="nats-require-auth is set"):
        anyio.run(of_frontends_bus, settings, folder)


def _database_url(folder: Path) -> None:
    assert (folder / "changed.db").is_file()


COMMON: dict[str, Entry] = {
    "log_level": _log_level,
    "log_format": _log_format,
    "registration_token_file": _token_file,
    "registration_require_auth": Inert("a token is always required, unless --insecure-no-token"),
}
SOURCES: dict[str, Entry] = {
    "backend_galleries": Wired((GALLERY,), "Gallery.name", "of-the-test"),
    "registry_mirrors": Wired({"a.test": ("b.test",)}, "Registries.mirrors"),
    "registry_ca": Wired("{folder}/ca.pem", "Registries.ca"),
    "insecure_registries": Wired(("plain.test:5000",), "Registries.insecure", frozenset({"plain.test:5000"})),
}
FRONTEND: dict[str, Entry] = {
    **COMMON,
    "model_galleries": Wired((GALLERY,), "ModelSources._galleries", (Gallery.model_validate(GALLERY),)),
    "model_scheduling": Proven(
        "integration/api/test_scheduling_seeds.py::"
        "test_declared_at_the_start_and_what_was_changed_since_stays"
    ),
    "model_scheduling_config": _scheduling_config,
    **SOURCES,
    "data_dir": Wired("{folder}/frontend", "DataFolder.root"),
    "registration_token": Wired("a-token", "Access.registration_token"),
    "insecure_no_token": Proven(
        "integration/api/test_security.py::test_without_a_token_workers_register_freely"
    ),
    "host": Wired(HOST, "NatsServer._host"),
    "port": Wired("{port}", "Told.local_port"),
    "lan": _lan,
    "public_url": Wired("https://public.test", "RunningFrontend.url"),
    "allowed_hosts": Wired(
        ("also.test",),
        "Access.allowed_hosts",
        frozenset({"localhost", "127.0.0.1", "::1", HOST, "also.test"}),
    ),
    "tls_cert": Proven("integration/fleet/test_https.py::test_public_address_speaks_https_only"),
    "tls_key": Proven("integration/fleet/test_https.py::test_public_address_speaks_https_only"),
    "database_url": _database_url,
    "auto_approve": _auto_approve,
    "refuse_address_only": Proven("integration/api/test_identity.py::test_such_peers_can_be_refused"),
    "trusted_proxies": Wired(("10.9.8.7",), "TrustedProxies.networks", (IPv4Network("10.9.8.7/32"),)),
    "cors_origins": Wired(("https://app.test",), "Access.origins", frozenset({"https://app.test"})),
    "node_unhealthy_after": Wired(minutes(11), "Thresholds.unhealthy_after"),
    "node_offline_after": Wired(minutes(12), "Thresholds.offline_after"),
    "nats_port": Wired("{bus_port}", "NatsServer._wanted_port"),
    "nats_advertise_url": Wired("nats://told.test:1", "Told.bus_url"),
    "nats_worker_jwt_ttl": Wired(minutes(13), "AccountIssuer._ttl"),
    "distributed": Inert("a frontend is always distributed; LocalAI's variable is accepted"),
    "distributed_shared_models": Wired(True, "PlacementInputs.shared"),
    "distributed_disk_headroom_check": Wired(False, "PlacementInputs.checks_disk"),
    "nats_backend_install_timeout": Wired(minutes(14), "Timeouts.install"),
    "nats_backend_upgrade_timeout": Wired(minutes(16), "Timeouts.upgrade"),
    "nodes_at_once": Wired(17, "Policy.at_once"),
    "allow_local_sources": Wired(True, "Policy.local_sources"),
    "nats_model_load_timeout": Wired(minutes(18), "LoadLimits.load"),
    "model_load_wait": Wired(timedelta(0), "WaitLimits.load_s", None),
    "file_transfer_timeout": Wired(minutes(9), "FilePusher._patience_s", 540.0),
    "file_transfer_retries": Wired(9, "FileUploads._tries_max"),
    "expose_node_header": Wired(True, "Inference.expose_node"),
    "models_path": Wired("{folder}/models", "ModelCatalogue._models_path"),
    "credentials_file": Wired("{folder}/keys.toml", "CredentialsFile._path"),
    "ollama_registry": Wired("ollama.test:5000", "HubAccess.ollama_host"),
    "keep_alive": Wired(minutes(19), "UpkeepPolicy.keep_alive"),
    "requests_waiting_max": Wired(20, "WaitLimits.waiting_max"),
    "request_wait": Wired(timedelta(seconds=21), "WaitLimits.seat_s", 21.0),
    "distributed_prefix_cache": Wired(False, "ReplicaChooser._by_prefixes"),
    "distributed_prefix_cache_ttl": Wired(timedelta(seconds=42), "ReplicaChooser._lives_s", 42.0),
    "work_check": Wired(timedelta(seconds=41), "WorkChecks._every_s", 41.0),
    "answer_silence": Wired(timedelta(seconds=22), "GrpcTimeouts.silence_s", 22.0),
    "answer_limit": Wired(timedelta(seconds=23), "GrpcTimeouts.whole_s", 23.0),
    "request_bytes_max": Wired(24_000, "Inference.body_bytes_max"),
    "storage_url": Wired("http://s3.test", "S3Account.url"),
    "storage_bucket": Wired("of-the-test", "S3Account.bucket"),
    "storage_region": Wired("attic", "S3Account.region"),
    "storage_access_key": Wired("an-access-key", "S3Account.access_key"),
    "storage_secret_key": Wired("a-secret-key", "S3Account.secret_key"),
    "fetch_links": Wired(True, "LinkFetcher.allowed"),
    "response_retention": Wired(timedelta(days=5), "ResponseKeeper._retention"),
    "response_bytes_max": Wired(26_000, "ResponseKeeper._owner_bytes_max"),
    "shutdown_grace": Wired(timedelta(seconds=25), "Running._grace_s", 25.0),
}
EXTERNAL_BUS: dict[str, Entry] = {
    "nats_url": Wired("nats://bus.test:4222", "Servers.urls", ("nats://bus.test:4222",)),
    "nats_user": Wired("ada", "UserPassword.user"),
    "nats_password": Wired("pass", "UserPassword.password"),
    "nats_creds": Wired("{folder}/user.creds", "read.path"),
    "nats_tls_ca": Wired("{folder}/ca.pem", "TlsFiles.ca"),
    "nats_tls_cert": Wired("{folder}/cert.pem", "TlsFiles.cert"),
    "nats_tls_key": Wired("{folder}/cert.pem", "TlsFiles.key"),
}
FRONTENDS_BUS: dict[str, Entry] = {
    **EXTERNAL_BUS,
    "nats_account_seed": Wired("{account_seed}", "_KeyPair.seed"),
    "nats_service_jwt": Wired("{jwt}", "UserJwt.jwt"),
    "nats_service_seed": Wired("{seed}", "UserJwt.seed"),
    "nats_require_auth": _require_auth,
}
WORKERS_BUS: dict[str, Entry] = {
    **EXTERNAL_BUS,
    "nats_url": Wired("nats://bus.test:4222", "BusPolicy.url"),
    "nats_require_auth": Wired(True, "BusPolicy.require_auth"),
    "nats_jwt": Wired("{jwt}", "UserJwt.jwt"),
    "nats_user_seed": Wired("{seed}", "UserJwt.seed"),
}
WORKER: dict[str, Entry] = {
    **COMMON,
    **SOURCES,
    "data_dir": Wired("{folder}/worker", "DataFolder.root"),
    "registration_token": Wired("a-token", "WorkerConfig.token"),
    "insecure_no_token": Wired(True, "RuntimeSettings.open_without_token"),
    "depot_budget": Wired("3GiB", "RuntimeSettings.blobs_bytes_max", 3 << 30),
    "depot_unused": Wired(minutes(31), "RuntimeSettings.blobs_unused"),
    "register_to": Wired("http://127.0.0.1:1", "WorkerConfig.frontend_url"),
    "ca": Wired("{folder}/ca.pem", "WorkerConfig.ca"),
    "node_name": Wired("of-the-test", "Introduction.name"),
    "node_labels": Wired({"room": "attic"}, "Introduction.labels"),
    "addr": Wired("127.0.0.1:{base_port}", "AddressSettings.addr"),
    "serve_addr": Wired("127.0.0.1:7001", "AddressSettings.serve_addr"),
    "advertise_addr": Wired("127.0.0.1:7002", "AddressSettings.advertise_addr"),
    "http_addr": Wired("127.0.0.1:{http_port}", "AddressSettings.http_addr"),
    "advertise_http_addr": Wired("127.0.0.1:7003", "AddressSettings.advertise_http_addr"),
    "heartbeat_interval": Wired(minutes(32), "WorkerConfig.heartbeat_interval"),
    "max_replicas_per_model": Wired(33, "Introduction.max_replicas_per_model"),
    "ram_budget": _ram_budget,
    "vram_budget": Wired("34%", "Introduction.vram_budget"),
    "model_files_budget": Wired("35%", "RuntimeSettings.model_files_budget"),
    "backend_nice": Wired(7, "RuntimeSettings.niceness"),
    "yield_gpu": Wired(True, "RuntimeSettings.yields_gpu"),
    "models_path": Wired("{folder}/models", "RuntimeSettings.models"),
    "backends_path": Wired("{folder}/backends", "DepotLayout.backends"),
    "backends_system_path": Wired("{folder}/system", "DepotLayout.system"),
    "backend_env": Wired(("HF_TOKEN",), "RuntimeSettings.backend_env"),
    "grpc_max_port": Wired(65_000, "Ports.last"),
    "require_backend_integrity": Wired(True, "Depot._require_integrity"),
    "storage_url": Wired("http://s3.test", "S3Account.url"),
    "storage_bucket": Wired("of-the-test", "S3Account.bucket"),
    "storage_region": Wired("attic", "S3Account.region"),
    "storage_access_key": Wired("an-access-key", "S3Account.access_key"),
    "storage_secret_key": Wired("a-secret-key", "S3Account.secret_key"),
}
ALL: dict[str, tuple[type[Settings], dict[str, Entry]]] = {
    "frontend": (FrontendSettings, {**FRONTENDS_BUS, **FRONTEND}),
    "worker": (WorkerSettings, {**WORKERS_BUS, **WORKER}),
}
TOGETHER = (  # Settings that are only given together; of the logins only one counts.
    {"nats_user", "nats_password"},
    {"nats_creds"},
    {"nats_service_jwt", "nats_service_seed"},
    {"nats_jwt", "nats_user_seed"},
    {"nats_account_seed"},
    {"nats_tls_ca", "nats_tls_cert", "nats_tls_key"},
    {"nats_url"},
    {"nats_require_auth"},
)


@dataclass(frozen=True, slots=True)
class Ports:
    last: int


Words = dict[str, object]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Words:
    """What the table leaves open."""
    folder = tmp_path_factory.mktemp("wiring")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("bus.test").private_key_and_cert_chain_pem.write_to_path(folder / "cert.pem")
    keys = ClusterKeys.create(SystemEntropy())
    user = keys.account.mint_frontend("ada", now=datetime(2026, 1, 1, tzinfo=UTC))
    seed = user.seed.get_secret_value()
    (folder / "user.creds").write_text(
        f"-----BEGIN NATS USER JWT-----\n{user.jwt}\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    ports = (free_port("127.0.0.1") for _ in range(4))
    named = zip(("port", "bus_port", "base_port", "http_port"), ports, strict=True)
    return {
        "folder": folder,
        "jwt": user.jwt,
        "seed": seed,
        "account_seed": keys.account_seed.get_secret_value(),
        **dict(named),
    }


@pytest.fixture(scope="module")
def frontends(words: Words) -> tuple[Attributes, Attributes]:
    folder = words["folder"]
    usual = FrontendSettings.model_validate({"data_dir": f"{folder}/usual", "port": 0})
    values = {**values_of(FRONTEND, words), "database_url": f"sqlite:///{folder}/changed.db"}
    return anyio.run(of_frontend, usual), anyio.run(of_frontend, FrontendSettings.model_validate(values))


@pytest.fixture(scope="module")
def workers(words: Words) -> tuple[Attributes, Attributes]:
    changed = WorkerSettings.model_validate(values_of(WORKER, words))
    return anyio.run(of_worker, usual_worker(words)), anyio.run(of_worker, changed)


def usual_worker(words: Words, **changes: object) -> WorkerSettings:
    needed = {"register_to": "http://127.0.0.1:2", "registration_token": "token"}
    return WorkerSettings.model_validate({"data_dir": f"{words['folder']}/usual-worker", **needed, **changes})


def values_of(entries: Mapping[str, Entry], words: Words) -> dict[str, object]:
    """As somebody would write them."""
    wired = {name: entry.given for name, entry in entries.items() if isinstance(entry, Wired)}
    return {name: filled(value, words) for name, value in wired.items()}


def filled(value: object, words: Words) -> object:
    if not isinstance(value, str):
        return value
    return words[value[1:-1]] if value[1:-1] in words else value.format(**words)


async def of_frontend(settings: FrontendSettings) -> Attributes:
    manager = running_frontend(settings, admission_policy(settings, otherwise=False))
    async with manager as running:
        frame = manager.gen.ag_frame  # type: ignore[attr-defined]
        services = frame.f_locals["services"]
        found = attributes(running, services, *running_things())
        assert isinstance(services, Services)
        told = Told(services.bus_url_for("reached.test"), int(running.local_url.rpartition(":")[2]))
        return {**found, **attributes(told)}


async def of_frontends_bus(settings: FrontendSettings, folder: Path) -> Attributes:
    planner = BusPlanner(settings, FrontendId("f"), SystemClock(), SystemEntropy())
    plan = await planner.plan("127.0.0.1", DataFolder(folder), NoSecrets())
    return attributes(plan, plan.open())


class NoSecrets:
    """On an external bus the fleet has none."""

    async def secret(self, name: str, make: Callable[[], str]) -> str:
        raise AssertionError(name)


async def of_worker(settings: WorkerSettings) -> Attributes:
    folder = DataFolder(settings.data_dir)
    folder.prepare()
    login = _own_login(settings)
    config = _config(settings, folder, own_login=login is not None, entropy=SystemEntropy())
    inventory = HardwareInventory(SystemHost(), folder.models)
    async with open_backend_runtimes(settings, folder, config, inventory) as rooms:
        worker = _assemble(settings, config, login, inventory, rooms)
        found = attributes(worker, config, folder)
        for listening in found["Worker._listening"]:
            assert isinstance(listening, Listening)
            listening.socket.close()
    (ports,) = {value for value in found["RuntimeSettings.ports"] if isinstance(value, range)}
    return {**found, **attributes(Ports(ports[-1]))}


def check_arrival(name: str, entry: Wired, default: Attributes, changed: Attributes, words: Words) -> None:
    expected = entry.given if entry.becomes is ... else entry.becomes
    expected = filled(expected, words)
    wanted = _comparable(expected)
    arrived = {_comparable(value) for value in changed[entry.arrives]}
    usual = {_comparable(value) for value in default.get(entry.arrives, [])}
    assert wanted in arrived, f"{name} does not arrive in {entry.arrives}, which is {arrived}"
    assert wanted not in usual, f"{entry.arrives} is {expected} without {name}, too"


def _comparable(value: object) -> str:
    """Paths and ports may be given as text; sets have no order."""
    return str(sorted(value)) if isinstance(value, frozenset) else str(value)


UP = {
    "starter": Proven(
        "integration/serving/test_first_page.py::test_the_first_start_brings_a_model_to_chat_with"
    )
}


@pytest.mark.parametrize("role", ALL)
def test_every_setting_has_an_entry(role: str) -> None:
    model, entries = ALL[role]
    wanted = {item.field for item in described(model) if not item.setting.no_effect_yet}
    assert wanted - entries.keys() == set(), "say in the table where it arrives"
    assert entries.keys() - wanted == set(), "there is no such setting any more"
    of_roles = {field for one, _ in ALL.values() for field in one.model_fields}
    assert UpSettings.model_fields.keys() == of_roles | UP.keys(), "say where a setting of `up` alone arrives"


@pytest.mark.parametrize("name", FRONTEND)
def test_a_setting_of_a_frontend_changes_something(
    name: str, frontends: tuple[Attributes, Attributes], words: Words
) -> None:
    check_entry(name, FRONTEND[name], frontends, words)


@pytest.mark.parametrize("name", WORKER)
def test_a_setting_of_a_worker_changes_something(
    name: str, workers: tuple[Attributes, Attributes], words: Words
) -> None:
    check_entry(name, WORKER[name], workers, words)


def check_entry(name: str, entry: Entry, built: tuple[Attributes, Attributes], words: Words) -> None:
    match entry:
        case Wired():
            check_arrival(name, entry, *built, words)
        case Proven(by):
            file, _, test = by.partition("::")
            assert f"def {test}(" in (ROOT / "tests" / file).read_text()
        case Inert(why):
            assert why
        case _:
            entry(Path(str(words["folder"])))


@pytest.mark.parametrize("name", FRONTENDS_BUS)
def test_a_setting_of_a_frontends_bus_changes_something(name: str, words: Words) -> None:
    entry, folder = FRONTENDS_BUS[name], Path(str(words["folder"]))
    usual = FrontendSettings.model_validate({"nats_url": "nats://usual.test:4222"})
    given = {"nats_url": "nats://usual.test:4222", **_together(name, FRONTENDS_BUS, words)}
    changed = usual if not isinstance(entry, Wired) else FrontendSettings.model_validate(given)
    built = tuple(anyio.run(of_frontends_bus, settings, folder) for settings in (usual, changed))
    check_entry(name, entry, (built[0], built[1]), words)


@pytest.mark.parametrize("name", WORKERS_BUS)
def test_a_setting_of_a_workers_bus_changes_something(
    name: str, workers: tuple[Attributes, Attributes], words: Words
) -> None:
    changed = usual_worker(words, **_together(name, WORKERS_BUS, words))
    check_entry(name, WORKERS_BUS[name], (workers[0], anyio.run(of_worker, changed)), words)


def _together(name: str, entries: Mapping[str, Entry], words: Words) -> dict[str, object]:
    group = next(group for group in TOGETHER if name in group)
    return values_of({one: entries[one] for one in group if one in entries}, words)


def test_up_hands_every_setting_of_a_worker_to_its_worker(words: Words, tmp_path: Path) -> None:
    given = values_of({**WORKER, "nats_require_auth": WORKERS_BUS["nats_require_auth"]}, words)
    given |= {"data_dir": str(tmp_path), "backend_galleries": json.dumps([GALLERY])}
    given |= {"registry_mirrors": "a.test=b.test", "node_labels": "room=attic"}
    spans = {name: value for name, value in given.items() if isinstance(value, timedelta)}
    given |= {name: durations.render(span) for name, span in spans.items()}
    up = resolve(UpSettings, flags=given, environ={})
    frontend = Launched("http://127.0.0.1:1", SecretStr("a-token"))

    environ = worker_environment(up, frontend, {"PATH": "/bin", "REMUDA_DATABASE_URL": "secret"})
    worker = resolve(WorkerSettings, flags={}, environ=environ).values

    assert "REMUDA_DATABASE_URL" not in environ
    for name in WORKER.keys() - {"log_level", "log_format", "registration_token_file"}:
        assert getattr(worker, name) == getattr(up.values, name), name


@dataclass(frozen=True, slots=True)
class Launched:
    """What a worker is told of its frontend."""

    local_url: str
    token: SecretStr | None
