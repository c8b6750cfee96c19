"""Debian's docker-registry on a free loopback port: installed when missing, gone when its block ends."""

import base64
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from remuda.host.ports import free_port
from tests.support.debian import debian_program
from tests.support.images import Pusher
from tests.support.waiting import wait_until_blocking

HOST = "127.0.0.1"
USER, PASSWORD = "rider", "saddle-4711"
_INSTALL_S = 300.0
_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class RegistryServer:
    port: int
    pusher: Pusher

    @property
    def name(self) -> str:
        """As it stands in references."""
        return f"{HOST}:{self.port}"

    def blob_path(self, folder: Path, digest: str) -> Path:
        """Where the server keeps a blob in its folder, for tests that damage it."""
        value = digest.partition(":")[2]
        return folder / "data/docker/registry/v2/blobs/sha256" / value[:2] / value / "data"


@contextmanager
def registry_server(
    folder: Path,
    *,
    basic: bool = False,
    tls: tuple[Path, Path] | None = None,
) -> Iterator[RegistryServer]:
    """A registry that answers when the block begins. `tls` are a certificate and its key; the pusher has no
    TLS, so such a registry is filled through another one on the same folder."""
    port = free_port(HOST)
    config = folder / f"registry-{port}.json"
    config.write_text(json.dumps(_config(folder, port, basic, tls)))  # JSON is YAML, too.
    with (folder / f"registry-{port}.log").open("wb") as output:
        process = subprocess.Popen(
            [debian_program("docker-registry", "docker-registry"), "serve", str(config)],
            stdout=output,
            stderr=output,
            env={"OTEL_TRACES_EXPORTER": "none", "PATH": os.environ["PATH"]},
        )
        try:
            wait_until_blocking(lambda: _answers(port, tls is not None), within=30, what="the registry")
            yield RegistryServer(port, Pusher(f"http://{HOST}:{port}", _basic_header() if basic else None))
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_S)


def _config(folder: Path, port: int, basic: bool, tls: tuple[Path, Path] | None) -> Mapping[str, object]:
    http: dict[str, object] = {"addr": f"{HOST}:{port}"}
    if tls is not None:
        http["tls"] = {"certificate": str(tls[0]), "key": str(tls[1])}
    config: dict[str, object] = {
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": http,
    }
    if basic:
        config["auth"] = {"htpasswd": {"realm": "test", "path": str(_htpasswd(folder))}}
    return config


def _answers(port: int, tls: bool) -> bool:
    """Any answer will do: it may be a demand for a password, or for TLS."""
    try:
        urllib.request.urlopen(f"http://{HOST}:{port}/v2/", timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code in ((400,) if tls else (401,))
    except OSError:
        return False
    return True


def _basic_header() -> Mapping[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"}


def _htpasswd(folder: Path) -> Path:
    """The registry takes no hash but bcrypt's, which Python has not."""
    program = debian_program("htpasswd", "apache2-utils")
    made = subprocess.run([program, "-nbB", USER, PASSWORD], check=True, capture_output=True, timeout=30)
    path = folder / "htpasswd"
    path.write_bytes(made.stdout)
    return path
