"""Where a setting's value comes from, and what happens when it cannot be used."""

from pathlib import Path

import pytest

from remuda.assembly.settings import CommonSettings, FrontendSettings, UpSettings, WorkerSettings
from remuda.core.errors import Misconfigured
from remuda.core.settings import (
    as_environment,
    described,
    read_file,
    resolve,
    setting_rows,
    unknown_variables,
)

SOURCES: list[dict[str, dict[str, object]]] = [
    {"flags": {"node_name": "flag"}},
    {"environ": {"REMUDA_NODE_NAME": "remuda"}},
    {"environ": {"LOCALAI_NODE_NAME": "localai"}},
    {"saved": {"node_name": "saved"}},
    {"file": {"node_name": "file"}},
]


def chosen(sources: list[dict[str, dict[str, object]]]) -> str:
    given: dict[str, dict[str, object]] = {"flags": {}, "environ": {}, "saved": {}, "file": {}}
    for source in sources:
        for kind, values in source.items():
            given[kind] = {**values, **given[kind]}
    environ = {name: str(value) for name, value in given["environ"].items()}
    return resolve(
        WorkerSettings, flags=given["flags"], environ=environ, saved=given["saved"], file=given["file"]
    ).values.node_name


@pytest.mark.parametrize("first", range(len(SOURCES)))
def test_each_source_wins_over_all_after_it(first: int) -> None:
    winner = next(iter(next(iter(SOURCES[first].values())).values()))

    assert chosen(SOURCES[first:]) == winner


def test_a_variable_set_to_nothing_is_not_set() -> None:
    resolved = resolve(CommonSettings, flags={}, environ={"REMUDA_REGISTRATION_TOKEN": ""})

    assert resolved.values.registration_token is None
    assert resolved.origins["registration_token"] == "default"


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("REMUDA_PORT", "eighty", "a port from 0 to 65535"),
        ("REMUDA_PORT", "70000", "a port from 0 to 65535"),
        ("REMUDA_HEARTBEAT_INTERVAL", "x", "10s"),
        ("LOCALAI_HEARTBEAT_INTERVAL", "10", "10s"),
        ("LOCALAI_BACKEND_GALLERIES", "{", "a JSON list"),
        ("LOCALAI_AUTO_APPROVE_NODES", "perhaps", "true or false"),
        ("REMUDA_LOG_LEVEL", "loud", "debug, info, warning or error"),
        ("LOCALAI_MAX_REPLICAS_PER_MODEL", "0", "1 to 1000"),
    ],
)
def test_a_value_that_cannot_be_read_names_variable_and_accepted_form(
    name: str, value: str, accepted: str
) -> None:
    with pytest.raises(Misconfigured) as refused:
        resolve(UpSettings, flags={}, environ={name: value})

    assert name in refused.value.message
    assert accepted in refused.value.message


def test_a_secret_that_cannot_be_used_is_not_quoted() -> None:
    with pytest.raises(Misconfigured) as refused:
        resolve(WorkerSettings, flags={}, environ={"LOCALAI_NATS_JWT": "eyJsecret"})

    assert "eyJsecret" not in str(refused.value)
    assert "nats-user-seed" in refused.value.message


@pytest.mark.parametrize("model", [CommonSettings, FrontendSettings, WorkerSettings, UpSettings])
def test_no_two_settings_share_a_name(model: type[CommonSettings]) -> None:
    items = list(described(model))
    flags = [item.flag for item in items]

    assert len(set(flags)) == len(flags)


def test_settings_with_no_effect_say_so() -> None:
    silent = {item.field for item in described(UpSettings) if item.setting.no_effect_yet}

    assert "prefetch_models" in silent
    assert (
        not {"port", "distributed_prefix_cache", "heartbeat_interval", "registration_token", "storage_url"}
        & silent
    )


def test_an_unknown_key_in_the_file_is_refused_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("heartbeat-intervall = '5s'")

    with pytest.raises(Misconfigured, match="heartbeat_interval"):
        read_file(file, frozenset({"heartbeat_interval"}), required=True)


def test_a_misspelt_variable_is_noticed() -> None:
    strays = unknown_variables({"REMUDA_PROT": "80", "PATH": "/bin"}, frozenset({"port", "host"}))

    assert list(strays) == ["REMUDA_PROT"]
    assert "REMUDA_PORT" in strays["REMUDA_PROT"]


@pytest.mark.parametrize(
    "given",
    [
        {"node_labels": {"zone": "a"}, "heartbeat_interval": "7s"},
        {"prefetch_models": ["a", "b"], "max_replicas_per_model": 3, "insecure_no_token": True},
        {"galleries": [{"name": "g"}], "vram_budget": "80%"},
    ],
)
def test_settings_reach_another_process_unchanged(given: dict[str, object]) -> None:
    here = resolve(WorkerSettings, flags=given, environ={})

    there = resolve(WorkerSettings, flags={}, environ=as_environment(WorkerSettings, here.given))

    assert there.values == here.values


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("a=1,b=2", {"a": "1", "b": "2"}),
        (" a = 1 , b=x=y ", {"a": "1", "b": "x=y"}),
        ("lonely,=value,,a=1", {"a": "1"}),
        ("a=", {"a": ""}),
    ],
)
def test_labels_are_trimmed_and_malformed_pairs_dropped(text: str, labels: dict[str, str]) -> None:
    resolved = resolve(WorkerSettings, flags={}, environ={"LOCALAI_NODE_LABELS": text})

    assert resolved.values.node_labels == labels


def test_a_list_is_shown_as_it_would_be_typed() -> None:
    given = {"backend_galleries": [{"name": "mine", "url": "file:///x.yaml"}]}
    rows = setting_rows(WorkerSettings.model_validate(given), {})
    (shown,) = [row.value for row in rows if row.setting == "backend_galleries"]
    assert shown == '[{"name": "mine", "url": "file:///x.yaml"}]'
