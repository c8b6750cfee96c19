"""How long a reply may take is a setting, per kind of request; and the figures that peers rely on."""

from datetime import timedelta

import pytest

from remuda.assembly.settings import FrontendSettings
from remuda.core import limits
from remuda.core.errors import Misconfigured
from remuda.core.settings import described, resolve
from remuda.ops.commander import Timeouts
from remuda.ops.inventories import EVERY
from remuda.ops.model import StepPolicy
from remuda.worker.commands.limits import PROGRESS_EVERY_S

INSTALL, UPGRADE = "LOCALAI_NATS_BACKEND_INSTALL_TIMEOUT", "LOCALAI_NATS_BACKEND_UPGRADE_TIMEOUT"
FLAGS = {INSTALL: "--backend-install-timeout", UPGRADE: "--backend-upgrade-timeout"}
FIELDS = {INSTALL: "nats_backend_install_timeout", UPGRADE: "nats_backend_upgrade_timeout"}
AS_SHIPPED = timedelta(minutes=15)


def in_effect(**variables: str) -> tuple[timedelta, timedelta]:
    values = resolve(FrontendSettings, flags={}, environ=variables).values
    return values.nats_backend_install_timeout, values.nats_backend_upgrade_timeout


def test_a001_installs_have_a_timeout_of_their_own() -> None:
    assert in_effect(**{INSTALL: "7s"}) == (timedelta(seconds=7), AS_SHIPPED)


def test_a002_upgrades_have_a_timeout_of_their_own() -> None:
    assert in_effect(**{UPGRADE: "8s"}) == (AS_SHIPPED, timedelta(seconds=8))


@pytest.mark.parametrize("variable", FLAGS)
def test_a003_a_malformed_timeout_stops_the_start_by_its_variable(variable: str) -> None:
    with pytest.raises(Misconfigured, match=variable):
        in_effect(**{variable: "abc"})


@pytest.mark.parametrize("variable", FLAGS)
def test_a004_a_negative_timeout_is_refused_by_its_flag(variable: str) -> None:
    with pytest.raises(Misconfigured, match=FLAGS[variable]):
        resolve(FrontendSettings, flags={FIELDS[variable]: "-1s"}, environ={})


@pytest.mark.parametrize("variable", FLAGS)
def test_a005_the_flags_of_timeouts_keep_their_names(variable: str) -> None:
    [setting] = [one for one in described(FrontendSettings) if variable in one.setting.aliases]
    assert setting.flag == FLAGS[variable]


@pytest.mark.parametrize("nothing", ["", "0s"])
def test_a006_a_timeout_of_nothing_is_the_usual_one(nothing: str) -> None:
    assert in_effect(**{INSTALL: nothing, UPGRADE: nothing}) == (AS_SHIPPED, AS_SHIPPED)


def test_b0_figures_of_operations_are_those_of_peers() -> None:
    policy, timeouts = StepPolicy(), Timeouts()
    assert (policy.backoff_first, policy.backoff_most) == (timedelta(seconds=30), timedelta(minutes=15))
    assert policy.failures_max == 10
    assert (timeouts.install, timeouts.upgrade) == (AS_SHIPPED, AS_SHIPPED)
    assert timeouts.remove == timedelta(minutes=2)
    assert timedelta(seconds=30) == EVERY
    assert PROGRESS_EVERY_S == 0.25


def test_b0_figures_of_backend_processes_are_those_of_peers() -> None:
    assert (limits.BACKEND_HEALTH_MOST_S, limits.BACKEND_START_S) == (0.2, 30)
    assert limits.BACKEND_FREE_S == 5
    assert (limits.PORT_QUARANTINE_S, limits.PORT_AFFINITY_S) == (15, 300)
