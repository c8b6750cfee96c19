"""`remuda backends` against a real registry, without a frontend."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.depot.conftest import Remuda, backends_command
from tests.support.images import image, layer
from tests.support.registry import RegistryServer

RUN = b"#!/bin/sh\n"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def environ(tmp_path: Path, registry: RegistryServer) -> dict[str, str]:
    """A machine of its own, with one gallery."""
    registry.pusher.push("cli/backend", "latest-cpu", image([layer({"run.sh": RUN})]))
    index = tmp_path / "index.yaml"
    index.write_text(
        f"""
- name: shouter
  description: Says it louder. And again.
  tags: [text-to-speech]
  capabilities: {{default: cpu-shouter, nvidia: cuda12-shouter}}
- {{name: cpu-shouter, alias: shouter, uri: "{registry.name}/cli/backend:latest-cpu"}}
- {{name: cuda12-shouter, alias: shouter, uri: "{registry.name}/cli/backend:latest-cuda"}}
- {{name: parrot, uri: "builtin:echo"}}
"""
    )
    galleries = [{"name": "mine", "url": f"file://{index}"}]
    return {
        "REMUDA_DATA_DIR": str(tmp_path / "data"),
        "REMUDA_CONFIG": "",
        "REMUDA_BACKEND_GALLERIES": json.dumps(galleries),
        "REMUDA_BACKENDS_SYSTEM_PATH": str(tmp_path / "system"),
        "REMUDA_FORCE_META_BACKEND_CAPABILITY": "default",
    }


@pytest.fixture
def remuda(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Remuda:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return backends_command


def test_a_name_is_searched_shown_pulled_listed_and_removed(remuda: Remuda, environ: dict[str, str]) -> None:
    assert "Says it louder" in remuda("search", "speech").stdout
    shown = remuda("show", "shouter").stdout
    assert "it gets: cpu-shouter, because this machine reports default" in shown
    assert "cuda12-shouter is for NVIDIA GPUs" in shown

    pulled = remuda("pull", "shouter")

    folder = Path(environ["REMUDA_DATA_DIR"]) / "worker" / "backends" / "cpu-shouter"
    assert pulled.stdout == f"cpu-shouter: installed in {folder}\n"
    assert "cpu-shouter: unpacking, 100%" in pulled.stderr
    assert "up to date" in remuda("pull", "shouter").stdout
    rows = json.loads(remuda("list", "--local", "--json").stdout)["backends"]
    assert [row["name"] for row in rows] == ["cpu-shouter"]
    assert "shouter" in remuda("list", "--local").stdout
    assert remuda("remove", "--local", "shouter").stdout == "shouter, cpu-shouter: removed\n"
    assert "no backends are installed" in remuda("list", "--local").stdout


def test_what_runs_is_not_removed_under_its_processes(remuda: Remuda, environ: dict[str, str]) -> None:
    remuda("pull", "shouter")
    folder = Path(environ["REMUDA_DATA_DIR"]) / "worker" / "backends" / "cpu-shouter"
    with subprocess.Popen(["sleep", "60"], cwd=folder) as process:
        try:
            refused = remuda("remove", "--local", "shouter", code=6)
        finally:
            process.kill()

    assert f"cpu-shouter is in use by process {process.pid} (sleep)" in refused.stderr
    assert folder.exists()
    remuda("remove", "--local", "shouter")
    assert not folder.exists()


def test_a_reference_is_pulled_under_its_own_name(remuda: Remuda, registry: RegistryServer) -> None:
    done = json.loads(remuda("pull", f"{registry.name}/cli/backend:latest-cpu", "--json").stdout)

    assert (done["name"], done["changed"]) == ("backend", True)


def test_what_ships_with_remuda_is_pulled_without_a_network(
    remuda: Remuda, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMUDA_REQUIRE_BACKEND_INTEGRITY", "true")

    assert "parrot: installed" in remuda("pull", "parrot").stdout
    assert "parrot: up to date" in remuda("pull", "parrot").stdout
    folder = Path(environ["REMUDA_DATA_DIR"]) / "worker" / "backends" / "parrot"
    assert f"python={sys.executable}\n" in (folder / "run.sh").read_text()


def test_an_unknown_name_is_not_found(remuda: Remuda) -> None:
    assert "did you mean shouter or" in remuda("pull", "shoutr", code=5).stderr
    assert "no gallery has a backend called" in remuda("show", "shoutr", code=5).stderr


def test_a_gallery_that_cannot_be_read_is_named_and_the_rest_works(
    remuda: Remuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    galleries = json.loads(os.environ["REMUDA_BACKEND_GALLERIES"])
    galleries.append({"name": "gone", "url": f"file://{tmp_path}/gone.yaml"})
    monkeypatch.setenv("REMUDA_BACKEND_GALLERIES", json.dumps(galleries))

    found = remuda("search", "--json")

    assert "gallery gone cannot be used" in found.stderr
    assert remuda("show", "shouter").stderr == "", "it comes from the other one"
    assert len(json.loads(found.stdout)["backends"]) == 4


def test_entries_that_cannot_be_used_are_told_with_their_line(remuda: Remuda, tmp_path: Path) -> None:
    bad = "".join(f"- {{name: bad-{number}}}\n" for number in range(7))
    (tmp_path / "index.yaml").write_text(f"- {{name: fine, uri: 'builtin:echo'}}\n{bad}")

    told = remuda("search", "fine").stderr.splitlines()

    reason = "it has neither a uri nor capabilities, so nothing can be installed"
    assert told[0] == f"warning: gallery mine has bad-0 (line 2): {reason}"
    assert told[5:] == ["warning: gallery mine has 2 more such entries"]


def test_a_gpu_that_stays_idle_is_told_where_a_backend_is_shown(
    remuda: Remuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMUDA_FORCE_META_BACKEND_CAPABILITY", "amd")
    warning = "cpu-shouter runs on the CPU and leaves this machine's GPU idle: shouter has no build for amd"

    assert f"warning: {warning}\n" in remuda("show", "shouter").stdout
    assert json.loads(remuda("show", "shouter", "--json").stdout)["warnings"] == [warning]


def test_where_nothing_fits_the_builds_that_do_are_named(remuda: Remuda) -> None:
    shown = remuda("show", "cuda12-shouter").stdout
    told = json.loads(remuda("show", "cuda12-shouter", "--json").stdout)

    assert "hint: these builds fit this machine: cpu-shouter\n" in shown
    assert told["hint"] == "these builds fit this machine: cpu-shouter"


def test_garbage_is_told_of_before_it_goes(remuda: Remuda) -> None:
    remuda("pull", "shouter")
    remuda("remove", "--local", "shouter")

    told = remuda("gc", "--dry-run", "--unused", "0s")
    done = json.loads(remuda("gc", "--unused", "0s", "--json").stdout)

    assert "no installed backend needs it" in told.stdout
    assert "would be freed" in told.stdout
    assert done["kept_bytes"] == 0
    assert len(done["blobs"]) == 1


def test_a_dry_run_of_gc_changes_nothing(remuda: Remuda, environ: dict[str, str]) -> None:
    remuda("pull", "shouter")
    remuda("remove", "--local", "shouter")
    worker = Path(environ["REMUDA_DATA_DIR"]) / "worker"
    half_made = worker / "backends" / ".remuda" / "staging" / "half-made"
    stale = worker / "depot" / "partial" / "sha256-1"
    for path in (half_made / "run.sh", stale):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(RUN)
    os.utime(stale, (0, 0))
    before = snapshot(worker)

    told = json.loads(remuda("gc", "--dry-run", "--unused", "0s", "--json").stdout)

    assert snapshot(worker) == before
    assert told["freed_bytes"] == len(RUN) + sum(blob["size"] for blob in told["blobs"])
    remuda("gc", "--unused", "0s")
    assert not half_made.exists()
    assert not stale.exists()


def test_gc_keeps_what_the_settings_say(remuda: Remuda, monkeypatch: pytest.MonkeyPatch) -> None:
    remuda("pull", "shouter")
    remuda("remove", "--local", "shouter")

    assert json.loads(remuda("gc", "--json").stdout)["blobs"] == []
    monkeypatch.setenv("REMUDA_DEPOT_BUDGET", "1B")
    assert len(json.loads(remuda("gc", "--json").stdout)["blobs"]) == 1


def test_mirrors_of_the_settings_are_asked(
    remuda: Remuda, registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrors = f"registry.invalid=127.0.0.1:1, registry.invalid=http://{registry.name}"
    monkeypatch.setenv("REMUDA_REGISTRY_MIRRORS", mirrors)

    done = json.loads(remuda("pull", "registry.invalid/cli/backend:latest-cpu", "--json").stdout)

    assert done["changed"]


def test_an_authority_that_cannot_be_used_is_named(
    remuda: Remuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REMUDA_REGISTRY_CA", str(tmp_path / "gone.pem"))

    assert "gone.pem cannot be used as a certificate authority" in remuda("pull", "shouter", code=2).stderr


def snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def test_strict_machines_refuse_what_nobody_vouched_for(
    remuda: Remuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMUDA_REQUIRE_BACKEND_INTEGRITY", "true")

    assert "cannot be verified" in remuda("pull", "shouter", code=6).stderr


def test_a_process_pulls_with_plain_lines(environ: dict[str, str]) -> None:
    command = [sys.executable, "-m", "remuda", "backends", "pull", "shouter"]
    path = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}

    done = subprocess.run(command, env=environ | path, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout.partition(" in ")[0]) == (0, "cpu-shouter: installed")
    assert done.stderr.splitlines()[-1] == "cpu-shouter: unpacking, 100%"
