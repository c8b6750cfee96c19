"""The units that start a worker with the machine."""

import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from platformdirs import user_data_path

from remuda.cli.service_unit import (
    Service,
    install,
    launchd_service,
    paused,
    remove,
    systemd_service,
    systemd_unit,
    unit_name,
)
from remuda.core import limits
from remuda.core.errors import Misconfigured, PeerFailed

COMMAND = (sys.executable, "-m", "remuda", "worker", "--data-dir", "/data")
HOME = Path("/home/ada")


def test_a_users_unit_restarts_on_failure_and_starts_at_login() -> None:
    unit = systemd_unit(COMMAND, system=False).splitlines()

    assert f'ExecStart="{sys.executable}" "-m" "remuda" "worker" "--data-dir" "/data"' in unit
    assert "Restart=on-failure" in unit
    assert "RestartPreventExitStatus=2 4" in unit
    assert "WantedBy=default.target" in unit


def test_a_system_unit_waits_for_the_network_and_starts_at_boot() -> None:
    unit = systemd_unit(COMMAND, system=True).splitlines()

    assert {"After=network-online.target", "WantedBy=multi-user.target"} <= set(unit)


def test_what_systemd_would_expand_is_taken_literally() -> None:
    unit = systemd_unit(("/bin/x", 'a "b" %h $HOME \\'), system=False)

    assert r'ExecStart="/bin/x" "a \"b\" %%h $$HOME \\"' in unit.splitlines()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("system", [True, False])
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path, system: bool) -> None:
    path = tmp_path / "remuda-worker.service"
    path.write_text(systemd_unit(COMMAND, system=system))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60
    )

    # It also looks at units of the machine it runs on; only ours counts.
    assert [line for line in done.stderr.splitlines() if "remuda-worker" in line] == []


def test_a_worker_is_not_killed_before_its_orderly_stop_is_over() -> None:
    job = plistlib.loads(launchd_service(COMMAND, Path("/data"), HOME, 501, system=False).content.encode())
    unit = systemd_unit(COMMAND, system=False)

    least = limits.LEAVE_IDLE_S + 2 * limits.LEAVE_CALL_S + limits.PROBE_SHUTDOWN_S
    assert job["ExitTimeOut"] > least
    assert f"TimeoutStopSec={job['ExitTimeOut']}\n" in unit


def test_root_gets_a_system_unit_and_others_their_own() -> None:
    own = systemd_service(COMMAND, Path("/data"), HOME, system=False)
    whole = systemd_service(COMMAND, Path("/data"), HOME, system=True)

    assert own.path.parent == HOME / ".config/systemd/user"
    assert own.commands[-1] == ("systemctl", "--user", "enable", "--now", own.name)
    assert "loginctl enable-linger" in own.notes[-1]
    assert whole.path.parent == Path("/etc/systemd/system")
    assert whole.commands[0] == ("systemctl", "daemon-reload")


@pytest.mark.parametrize(
    ("system", "folder", "domain"),
    [(False, HOME / "Library/LaunchAgents", "gui/501"), (True, Path("/Library/LaunchDaemons"), "system")],
)
def test_launchd_gets_a_job_that_stays_up_unless_it_ended_well(
    system: bool, folder: Path, domain: str
) -> None:
    service = launchd_service(COMMAND, Path("/data"), HOME, 501, system=system)

    job = plistlib.loads(service.content.encode())
    assert job["ProgramArguments"] == list(COMMAND)
    assert job["KeepAlive"] == {"SuccessfulExit": False}
    assert service.path == folder / f"{job['Label']}.plist"
    assert service.commands[-1] == ("launchctl", "bootstrap", domain, str(service.path))


def test_each_data_folder_has_a_service_of_its_own() -> None:
    names = {unit_name(user_data_path("remuda")), unit_name(Path("/a")), unit_name(Path("/b"))}

    assert len(names) == 3
    assert "remuda-worker" in names


def service(folder: Path, *commands: tuple[str, ...]) -> Service:
    disable = (("touch", str(folder / "disabled")),)
    return Service("x", folder / "units" / "x.service", "text", ("false",), commands, disable, (), ())


def test_installing_writes_the_unit_and_runs_the_commands(tmp_path: Path) -> None:
    install(service(tmp_path, ("touch", str(tmp_path / "started"))))

    assert (tmp_path / "units/x.service").read_text() == "text"
    assert (tmp_path / "started").exists()


@pytest.mark.parametrize("command", [("sh", "-c", "echo no such unit >&2; exit 1"), ("/no such unit",)])
def test_a_manager_that_refuses_is_quoted(tmp_path: Path, command: tuple[str, ...]) -> None:
    with pytest.raises(PeerFailed, match="no such unit"):
        install(service(tmp_path, command))
    assert not (tmp_path / "units/x.service").exists(), "nothing is left of it"


def test_removing_stops_the_service_and_forgets_its_unit(tmp_path: Path) -> None:
    there = service(tmp_path)
    assert not remove(there)
    install(there)
    assert remove(there)
    assert not there.path.exists()
    assert (tmp_path / "disabled").exists()


def test_a_service_is_started_again_when_what_it_made_way_for_fails(tmp_path: Path) -> None:
    there = service(tmp_path, ("touch", str(tmp_path / "started")))
    install(there)
    (tmp_path / "started").unlink()
    with pytest.raises(PeerFailed), paused(there):
        raise PeerFailed("the frontend refuses it")
    assert (tmp_path / "started").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "units").write_text("")

    with pytest.raises(Misconfigured, match="units"):
        install(service(tmp_path))
