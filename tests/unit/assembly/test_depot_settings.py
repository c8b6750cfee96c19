"""Settings of whoever fetches backends, as people write them."""

from pathlib import Path

import pytest

from remuda.assembly.settings.depot import DepotSettings
from remuda.assembly.settings.frontend import FrontendSettings
from remuda.assembly.sources import galleries_of, model_galleries_of, registries_of
from remuda.core.errors import Misconfigured
from remuda.core.settings import resolve
from remuda.gallery.sources import DEFAULT_GALLERIES, DEFAULT_MODEL_GALLERIES
from remuda.oci.transport import Registries


def settings(**environ: str) -> DepotSettings:
    named = {f"REMUDA_{name}": value for name, value in environ.items()}
    return resolve(DepotSettings, flags={}, environ=named).values


def test_mirrors_are_kept_in_their_order_under_the_registrys_one_name() -> None:
    given = settings(
        REGISTRY_MIRRORS="index.docker.io=one.org, Quay.io=http://two:5000 ,index.docker.io=[::1]:5000",
        INSECURE_REGISTRIES="two:5000",
        REGISTRY_CA="/etc/ca.pem",
    )

    assert registries_of(given) == Registries(
        insecure=frozenset({"two:5000"}),
        mirrors={"docker.io": ("one.org", "[::1]:5000"), "quay.io": ("http://two:5000",)},
        ca=Path("/etc/ca.pem"),
    )


def test_mirrors_may_be_a_map_of_lists() -> None:
    given = settings(REGISTRY_MIRRORS='{"docker.io": ["a", "b"]}')

    assert given.registry_mirrors == {"docker.io": ("a", "b")}


def test_unset_they_change_nothing() -> None:
    given = settings()

    assert registries_of(given) == Registries()
    assert given.depot_budget_bytes == 50 << 30


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REGISTRY_MIRRORS", "docker.io"),
        ("REGISTRY_MIRRORS", "docker.io="),
        ("REGISTRY_MIRRORS", "docker.io=https://example.org/with/a/path"),
        ("REGISTRY_MIRRORS", "https://docker.io=example.org"),
        ("REGISTRY_MIRRORS", "{"),
        ("INSECURE_REGISTRIES", "http://example.org"),
        ("DEPOT_BUDGET", "much"),
        ("DEPOT_UNUSED", "long"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(Misconfigured, match=name):
        settings(**{name: value})


def test_an_empty_list_of_galleries_is_none_and_nothing_is_asked_elsewhere() -> None:
    assert galleries_of(settings()) == DEFAULT_GALLERIES
    assert galleries_of(settings(BACKEND_GALLERIES="")) == DEFAULT_GALLERIES
    assert galleries_of(settings(BACKEND_GALLERIES="[]")) == ()
    for environ, galleries in (({}, DEFAULT_MODEL_GALLERIES), ({"REMUDA_MODEL_GALLERIES": "[]"}, ())):
        given = resolve(FrontendSettings, flags={}, environ=environ).values
        assert model_galleries_of(given) == galleries
