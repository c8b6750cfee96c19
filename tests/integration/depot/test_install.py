"""Backends from a real registry into a depot."""

import json
from pathlib import Path

import anyio
import pytest

from remuda.core.clock import SystemClock
from remuda.core.errors import RemudaError, Unavailable
from remuda.oci.client import RegistryClient
from remuda.oci.errors import ContentRefused, NotABackend, SignatureRequired
from remuda.oci.fetch import PullPhase
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.fetch_unpack import ProgressStep
from remuda.worker.depot.install_spec import InstallSpec, spec_from_source
from remuda.worker.depot.layout import DepotLayout
from tests.integration.depot.conftest import LINUX
from tests.support.images import BuiltImage, image, layer, noise_layer, tar_of
from tests.support.registry import RegistryServer
from tests.support.trickle import relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

MB = 1_000_000
RUN = b"#!/bin/sh\nexec true\n"


def backend(version: int, base_bytes: int = 3 * MB) -> BuiltImage:
    """A large layer that all versions share, and a small one of each."""
    own = layer({"run.sh": RUN, "version": b"%d" % version}, "zstd")
    return image([noise_layer(base_bytes, 7), own])


def pushed(registry: RegistryServer, repository: str, built: BuiltImage) -> str:
    registry.pusher.push(repository, "v1", built)
    return f"{registry.name}/{repository}:v1"


async def names(depot: Depot) -> list[str]:
    return [one.name for one in (await depot.installed()).reported]


async def test_an_image_is_installed_and_listed(registry: RegistryServer, depot: Depot) -> None:
    built = backend(1)
    reference = pushed(registry, "depot/first", built)

    done = await depot.install(spec_from_source(reference, "first", alias="one"))

    assert done.changed
    assert (done.folder / "run.sh").stat().st_mode & 0o777 == 0o755
    written = (done.folder / "metadata.json").read_text()
    assert list(json.loads(written)) == ["alias", "name", "installed_at", "uri", "digest"]
    assert '\n  "digest": "' + built.manifest.digest in written
    assert (done.folder / "metadata.json").stat().st_mode & 0o777 == 0o644
    assert await names(depot) == ["first"]
    assert await depot.run_file("one") == done.folder / "run.sh"


async def test_what_is_there_already_is_not_asked_about(registry: RegistryServer, depot: Depot) -> None:
    pushed(registry, "depot/ensured", backend(1))
    async with relay(registry.port) as link:
        spec = spec_from_source(f"127.0.0.1:{link.port}/depot/ensured:v1", "ensured")
        await depot.install(spec)
        fetched = link.bytes_back

        again = await depot.install(spec)
        assert not again.changed
        assert link.bytes_back == fetched
        refreshed = await depot.install(spec, refresh=True)
        assert not refreshed.changed
        assert 0 < link.bytes_back - fetched < 5_000  # A manifest and a configuration.


async def test_an_upgrade_fetches_only_the_layers_that_changed(
    registry: RegistryServer, depot: Depot
) -> None:
    await depot.install(spec_from_source(pushed(registry, "depot/grown", backend(1)), "grown"))
    registry.pusher.push("depot/grown", "v1", backend(2))

    async with relay(registry.port) as link:
        spec = spec_from_source(f"127.0.0.1:{link.port}/depot/grown:v1", "grown")
        done = await depot.install(spec, refresh=True)

        assert done.changed
        assert link.bytes_back < 10_000
    assert (done.folder / "version").read_bytes() == b"2"
    await depot.switch_back("grown")
    assert (done.folder / "version").read_bytes() == b"1"


async def test_the_version_before_goes_once_the_new_one_has_run(
    registry: RegistryServer, depot: Depot
) -> None:
    for version in (1, 2):
        reference = pushed(registry, "depot/proven", backend(version))
        await depot.install(spec_from_source(reference, "proven"), refresh=True)
    assert depot.places.previous("proven").is_dir()

    await depot.mark_proven("proven")

    assert not depot.places.previous("proven").exists()
    with pytest.raises(RemudaError, match="no earlier version"):
        await depot.switch_back("proven")


async def test_two_installs_at_once_fetch_a_shared_layer_once(registry: RegistryServer, depot: Depot) -> None:
    first, second = backend(1), backend(2)
    registry.pusher.push("depot/shared", "a", first)
    registry.pusher.push("depot/shared", "b", second)

    async with relay(registry.port) as link:
        link.bytes_per_s = 6 * MB
        async with anyio.create_task_group() as tasks:
            for tag in "ab":
                spec = spec_from_source(f"127.0.0.1:{link.port}/depot/shared:{tag}", f"shared-{tag}")
                tasks.start_soon(depot.install, spec)
        assert link.bytes_back < 1.1 * first.size

    assert await names(depot) == ["shared-a", "shared-b"]


async def test_progress_never_falls_and_ends_at_100(registry: RegistryServer, depot: Depot) -> None:
    steps: list[ProgressStep] = []

    reference = pushed(registry, "depot/told", backend(1))
    await depot.install(spec_from_source(reference, "told"), on_step=steps.append)

    percentages = [step.percentage for step in steps]
    assert percentages == sorted(percentages)
    assert percentages[-1] == 100
    spec = list(PullPhase)
    assert [spec.index(step.phase) for step in steps] == sorted(spec.index(step.phase) for step in steps)
    assert {step.phase for step in steps} == {
        PullPhase.RESOLVING,
        PullPhase.DOWNLOADING,
        PullPhase.EXTRACTING,
    }


async def test_cancelling_keeps_what_was_fetched_and_lists_nothing(
    registry: RegistryServer, depot: Depot
) -> None:
    built = backend(1)
    pushed(registry, "depot/cancelled", built)

    async with relay(registry.port) as link:
        spec = spec_from_source(f"127.0.0.1:{link.port}/depot/cancelled:v1", "cancelled")
        link.bytes_per_s = 2 * MB
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(depot.install, spec)
            await wait_until(lambda: link.bytes_back > MB, within=10)
            tasks.cancel_scope.cancel()
        assert await names(depot) == []
        assert depot.places.names_in("staging") == []
        link.bytes_per_s = float("inf")
        await depot.install(spec)

        assert link.bytes_back < 1.15 * built.size
    assert await names(depot) == ["cancelled"]


async def test_the_next_source_is_tried_when_one_fails(registry: RegistryServer, depot: Depot) -> None:
    there = pushed(registry, "depot/mirrored", backend(1))
    spec = InstallSpec("mirrored", (f"{registry.name}/depot/nowhere:v1", there))

    await depot.install(spec)

    written = json.loads((depot.places.installed("mirrored") / "metadata.json").read_text())
    assert written["uri"] == spec.uris[0]


async def test_all_sources_are_named_when_none_can_be_had(registry: RegistryServer, depot: Depot) -> None:
    spec = InstallSpec("nowhere", tuple(f"{registry.name}/depot/{name}:v1" for name in ("no", "none")))

    with pytest.raises(RemudaError, match=r"depot/no:v1.*depot/none:v1"):
        await depot.install(spec)

    assert await names(depot) == []


async def test_an_image_without_a_run_file_is_no_backend(registry: RegistryServer, depot: Depot) -> None:
    reference = pushed(registry, "depot/strange", image([layer({"readme": b"hello"})]))

    with pytest.raises(NotABackend, match=r"neither run\.sh"):
        await depot.install(spec_from_source(reference, "strange"))

    assert depot.places.names_in("staging") == []
    assert not depot.places.installed("strange").exists()


async def test_an_image_cannot_vouch_for_itself(registry: RegistryServer, depot: Depot) -> None:
    files = {"run.sh": RUN, ".remuda-proven": b"", ".remuda.json": b"{}", "metadata.json": b'{"alias": "x"}'}
    reference = pushed(registry, "depot/sly", image([layer(files)]))

    done = await depot.install(spec_from_source(reference, "sly"))

    assert not (done.folder / ".remuda-proven").exists()
    assert await depot.run_file("x") is None


async def test_strict_machines_take_only_what_was_vouched_for(
    registry: RegistryServer, places: DepotLayout, client: RegistryClient
) -> None:
    built = backend(1)
    reference = pushed(registry, "depot/strict", built)
    strict = Depot(places, SystemClock(), client, LINUX, require_integrity=True)

    with pytest.raises(SignatureRequired, match="cannot be verified"):
        await strict.install(spec_from_source(reference, "strict"))
    await strict.install(spec_from_source(f"{reference}@{built.manifest.digest}", "strict"))

    assert await names(strict) == ["strict"]


async def test_a_folder_is_copied_and_an_archive_checked(tmp_path: Path, depot: Depot) -> None:
    source = tmp_path / "mine"
    source.mkdir()
    (source / "run.sh").write_bytes(RUN)
    archive = tmp_path / "packed.tar"
    archive.write_bytes(tar_of({"run.sh": RUN}))

    done = await depot.install(spec_from_source(str(source)))
    await depot.install(spec_from_source(str(archive)))
    with pytest.raises(ContentRefused, match="promised"):
        await depot.install(InstallSpec("damaged", (str(archive),), sha256="0" * 64))

    assert await names(depot) == ["mine", "packed"]
    (done.folder / "run.sh").write_bytes(b"changed")
    assert (source / "run.sh").read_bytes() == RUN


async def test_a_meta_backend_stands_for_the_build_and_goes_with_it(
    registry: RegistryServer, depot: Depot
) -> None:
    reference = pushed(registry, "depot/meta", backend(1))
    spec = InstallSpec(
        "cpu-meta", (reference,), alias="meta", meta="meta", gallery_url="https://example.org/i"
    )

    done = await depot.install(spec)

    folder = depot.places.installed("meta")
    assert [path.name for path in folder.iterdir()] == ["metadata.json"]
    assert await depot.run_file("meta") == done.folder / "run.sh"
    assert await depot.remove("meta") == ("meta", "cpu-meta")
    assert await names(depot) == []


async def test_without_room_nothing_is_fetched(
    registry: RegistryServer, depot: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(registry, "depot/huge", backend(1))
    monkeypatch.setattr("remuda.oci.limits.MARGIN_BYTES_MIN", 1 << 60)

    async with relay(registry.port) as link:
        spec = spec_from_source(f"127.0.0.1:{link.port}/depot/huge:v1", "huge")
        with pytest.raises(
            Unavailable, match=r"needs .*, and 1\.0 EiB more to stay free, .* where .* are free"
        ):
            await depot.install(spec)

        assert link.bytes_back < 5_000
    assert await names(depot) == []
