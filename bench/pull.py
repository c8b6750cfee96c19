"""How fast a backend is pulled, against `curl` of the same blobs and `skopeo copy` in the same run.

    uv run --group dev python -m bench.pull [--mb 1000] [--rounds 3] [--folder DIR]

A real registry serves an image of several gzip layers (bench/backend_image.py) over loopback. Contenders take
turns, each in a process and a folder of its own, after everything written before has reached the disk; the
best round counts, and for memory the worst. Ours has its interpreter started already, as a worker has.

Fetching is measured against curl and skopeo, which leave the blobs to the page cache; installing also against
rivals that do all of its work: `curl | tar -xz` of each layer, and `skopeo copy` with `umoci unpack`, each
followed by `sync`. Ours checks digests and makes what it wrote durable in both cases.
The disk needs room for all rounds of all contenders.
Aims: at least 0.8 of curl, unpacking included; below 100 MB above idle.
"""

import platform
import shlex
import tempfile
import time
from functools import partial
from pathlib import Path

import anyio
from tests.support.debian import debian_program
from tests.support.registry import RegistryServer, registry_server

from bench.backend_image import backend_image
from bench.contenders import (
    Contender,
    Run,
    alone,
    command,
    compete,
    curl,
    in_fresh_interpreter,
    parser_of,
    rates,
)
from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.log import configure
from remuda.oci.blobs import BlobStore
from remuda.oci.client import RegistryClient, open_client
from remuda.oci.fetch import fetch_image
from remuda.oci.model import platform_of
from remuda.oci.reference import parse_reference
from remuda.worker.depot.depot import Depot
from remuda.worker.depot.install_spec import spec_from_source
from remuda.worker.depot.layout import DepotLayout

REPOSITORY, TAG = "bench/backend", "v1"
MACHINE = platform_of(platform.system(), platform.machine())
CURL_SHARE_AIM = 0.8
MEMORY_AIM_MB = 100
RIVALS = {
    "ours, fetched": ("curl", "skopeo copy"),
    "ours, installed": ("curl", "curl, tar", "skopeo, umoci"),
}


# Who pulls.


def fetched_by_curl(registry: RegistryServer, digests: list[str], folder: Path) -> Run:
    base = f"http://{registry.name}/v2/{REPOSITORY}/blobs"
    wanted = [word for digest in digests for word in ("-o", str(folder / digest), f"{base}/{digest}")]
    return curl(*wanted)


def curl_tar(registry: RegistryServer, digests: list[str], folder: Path) -> Run:
    base = f"http://{registry.name}/v2/{REPOSITORY}/blobs"
    each = f"curl -sSf {base}/{{}} | tar -xz -C {shlex.quote(str(folder))}"
    lines = [each.format(digest) for digest in digests]
    return command(["sh", "-ec", "\n".join([*lines, f"sync -f {shlex.quote(str(folder))}"])])


def skopeo(registry: RegistryServer, folder: Path) -> Run:
    return command(skopeo_words(registry, f"dir:{folder}"))


def skopeo_umoci(registry: RegistryServer, folder: Path) -> Run:
    copy = shlex.join(skopeo_words(registry, f"oci:{folder}/layout:{TAG}"))
    image, bundle = f"{folder}/layout:{TAG}", f"{folder}/bundle"
    unpack = shlex.join([debian_program("umoci", "umoci"), "unpack", "--rootless", "--image", image, bundle])
    return command(["sh", "-ec", f"{copy}\n{unpack}\nsync -f {shlex.quote(str(folder))}"])


def skopeo_words(registry: RegistryServer, target: str) -> list[str]:
    source = f"docker://{registry.name}/{REPOSITORY}:{TAG}"
    options = ["--insecure-policy", "copy", "--quiet", "--src-tls-verify=false"]
    return [debian_program("skopeo", "skopeo"), *options, source, target]


def ours(registry: RegistryServer, unpacked: bool, folder: Path) -> Run:
    return in_fresh_interpreter(pull_here, f"{registry.name}/{REPOSITORY}:{TAG}", unpacked, folder)


def pull_here(reference: str, unpacked: bool, folder: Path) -> Run:
    configure("warning")
    return anyio.run(measured_pull, reference, unpacked, folder)


async def measured_pull(reference: str, unpacked: bool, folder: Path) -> Run:
    async with open_client(SystemClock(), SystemEntropy()) as client:
        pull = install if unpacked else fetch
        idle_mb = resident_mb("VmRSS")
        forget_peak()
        began = time.perf_counter()
        await pull(client, reference, folder)
        return Run(time.perf_counter() - began, resident_mb("VmHWM") - idle_mb)


async def fetch(client: RegistryClient, reference: str, folder: Path) -> None:
    found = await client.image(parse_reference(reference), MACHINE)
    async with fetch_image(client, found, BlobStore(folder)) as fetched:
        await fetched.layers()


async def install(client: RegistryClient, reference: str, folder: Path) -> None:
    places = DepotLayout(folder / "backends", folder / "system", folder / "depot")
    depot = Depot(places, SystemClock(), client, MACHINE)
    done = await depot.install(spec_from_source(reference, "bench"))
    assert done.changed, "nothing was pulled"


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def resident_mb(field: str) -> float:
    """A line of the kernel's account, such as `VmHWM:  51200 kB`."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) * 1024 / 1e6


# How they compare.


def report(runs: dict[str, list[Run]], packed_mb: float) -> None:
    reached = rates(runs, packed_mb)
    for name, turns in runs.items():
        line = f"{name:15} {reached[name]:6.0f} MB/s"
        if name.startswith("ours"):
            rivals = RIVALS[name]
            shares = (f"{reached[name] / reached[rival]:.2f} of {rival}" for rival in rivals)
            memory_mb = max(run.memory_mb for run in turns)
            line += f"   {', '.join(shares)}; {memory_mb:.0f} MB above idle"
        print(line, flush=True)
    print(f"aims: {CURL_SHARE_AIM} of curl, below {MEMORY_AIM_MB} MB above idle", flush=True)


def main() -> None:
    parser = parser_of("Pulling against curl and skopeo.")
    parser.add_argument("--mb", type=int, default=1000, help="of compressed layers")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="remuda-bench-", dir=chosen.folder) as name:
        folder = Path(name)
        with registry_server(folder) as registry:
            made = backend_image(chosen.mb * 1_000_000, MACHINE)
            registry.pusher.push(REPOSITORY, TAG, made.built)
            packed_mb, digests = made.built.size / 1e6, [blob.digest for blob in made.built.layers]
            print(
                f"{len(digests)} gzip layers, {packed_mb:.0f} MB; unpacked {made.unpacked_bytes / 1e6:.0f} "
                f"MB in {made.files} files; best of {chosen.rounds}; MB/s of packed bytes",
                flush=True,
            )
            del made  # The contenders have better uses for the memory.
            contenders: dict[str, Contender] = {
                "curl": partial(fetched_by_curl, registry, digests),
                "curl, tar": partial(curl_tar, registry, digests),
                "skopeo copy": partial(skopeo, registry),
                "skopeo, umoci": partial(skopeo_umoci, registry),
                "ours, fetched": partial(ours, registry, False),
                "ours, installed": partial(ours, registry, True),
            }
            alone(contenders["curl"], folder)  # Now the registry reads from memory.
            report(compete(contenders, chosen.rounds, folder), packed_mb)


if __name__ == "__main__":
    main()
