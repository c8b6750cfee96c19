"""How fast a model's file is fetched, against other programs with the same file in the same run.

    uv run --group dev python -m bench.model_fetch [--mb 400] [--rounds 3] [--folder DIR]

A real registry serves the file over HTTP, and SeaweedFS over S3, both on loopback. Over HTTP the rival is
`curl`, over S3 the client library alone, writing what it streams to a file. Neither checks a digest nor makes
what it wrote durable; ours does both. So each rival is also measured with what a careful person does: `curl`
and then `openssl dgst -sha256` of the file, and the library with a digest of what it streams. All take turns.
What is printed is the best round of each, and beside it the median of the rounds' own ratios, from which the
load of the machine cancels out.
Aims: at least 0.8 of curl, 0.9 of the library.
"""

import hashlib
import tempfile
import time
from functools import partial
from pathlib import Path

import anyio
from obstore.store import S3Store
from tests.support.images import Blob, noise
from tests.support.object_store import ACCESS_KEY, SECRET_KEY, object_store
from tests.support.registry import registry_server

from bench.contenders import (
    Contender,
    Run,
    after,
    checksum,
    compete,
    curl,
    in_fresh_interpreter,
    in_turns,
    parser_of,
    rates,
)
from remuda.core.clock import SystemClock
from remuda.core.entropy import SystemEntropy
from remuda.core.log import configure
from remuda.hubs.hubs import HubAccess, open_hubs
from remuda.hubs.model import RemoteFile
from remuda.oci.blobs import BlobStore

REPOSITORY = "bench/model"
BUCKET = "models"
AIMS = {"https": ("curl", 0.8), "s3": ("obstore", 0.9)}
CHECKED = "curl, sha256"
HASHED = "obstore, SHA-256"
SAME_WORK = {"https": CHECKED, "s3": HASHED}


def fetched_by_curl(url: str, folder: Path) -> Run:
    return curl("-o", str(folder / "model"), url)


def fetched_and_checked(url: str, folder: Path) -> Run:
    return after(fetched_by_curl(url, folder), checksum(folder / "model"))


def obstore(endpoint: str, hashed: bool, folder: Path) -> Run:
    began, state = time.perf_counter(), hashlib.sha256()
    with (folder / "model").open("wb") as file:
        for chunk in bucket(endpoint).get("model.gguf").stream(min_chunk_size=1 << 20):
            file.write(chunk)
            if hashed:
                state.update(chunk)
    return Run(time.perf_counter() - began)


def bucket(endpoint: str) -> S3Store:
    return S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        region="us-east-1",
        client_options={"allow_http": True, "timeout": "300s"},
    )


def ours(file: RemoteFile, env: dict[str, str], folder: Path) -> Run:
    return in_fresh_interpreter(fetch_here, file, env, folder)


def fetch_here(file: RemoteFile, env: dict[str, str], folder: Path) -> Run:
    import obstore  # noqa: F401 - as a process has that fetched before; its rivals have it, too.

    configure("warning")
    return anyio.run(measured_fetch, file, env, folder, backend_options={"use_uvloop": True})


async def measured_fetch(file: RemoteFile, env: dict[str, str], folder: Path) -> Run:
    async with open_hubs(SystemClock(), SystemEntropy(), HubAccess(env=env)) as hubs:
        began = time.perf_counter()
        await hubs.fetch(file, BlobStore(folder), lambda done: None)
        return Run(time.perf_counter() - began)


def report(runs: dict[str, list[Run]], size_mb: float) -> None:
    reached = rates(runs, size_mb)
    for name, rate in reached.items():
        rival, aim = AIMS.get(name, ("", 0.0))
        compared = f"   {rate / reached[rival]:.2f} of {rival}; aim {aim}" if rival else ""
        print(f"{name:16} {rate:6.0f} MB/s{compared}", flush=True)
    for name, same in SAME_WORK.items():
        print(
            f"{name}, in turns: {in_turns(runs, name, AIMS[name][0]):.2f} of {AIMS[name][0]}; "
            f"of {same}, which checks what came, too: {in_turns(runs, name, same):.2f}",
            flush=True,
        )


def main() -> None:
    parser = parser_of("Fetching a model's file against curl and obstore.")
    parser.add_argument("--mb", type=int, default=400)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="remuda-bench-", dir=chosen.folder) as name:
        folder = Path(name)
        with registry_server(folder) as registry, object_store(folder) as storage:
            blob = Blob(noise(chosen.mb * 1_000_000, 1), "application/octet-stream")
            registry.pusher.push_blob(REPOSITORY, blob)
            bucket(storage.endpoint).put("model.gguf", blob.content)
            size, sha256 = len(blob.content), blob.digest.removeprefix("sha256:")
            url = f"http://{registry.name}/v2/{REPOSITORY}/blobs/{blob.digest}"
            del blob  # The contenders have better uses for the memory.
            env = {
                "AWS_ENDPOINT_URL": storage.endpoint,
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            }
            web = RemoteFile("model.gguf", size, sha256, (url,))
            stored = RemoteFile("model.gguf", size, sha256, (f"s3://{BUCKET}/model.gguf",))
            contenders: dict[str, Contender] = {
                "curl": partial(fetched_by_curl, url),
                CHECKED: partial(fetched_and_checked, url),
                "https": partial(ours, web, env),
                "obstore": partial(obstore, storage.endpoint, False),
                HASHED: partial(obstore, storage.endpoint, True),
                "s3": partial(ours, stored, env),
            }
            report(compete(contenders, chosen.rounds, folder), size / 1e6)


if __name__ == "__main__":
    main()
