"""A real frontend, with its own bus and store, for commands to talk to."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from click.testing import CliRunner, Result

from remuda.assembly.frontend import running_frontend
from remuda.assembly.settings import FrontendSettings
from remuda.cli.verbs import root
from remuda.core import log
from remuda.fleet.admission import AdmissionPolicy
from tests.support.logs import log_left_as_it_was
from tests.support.plain_http import PLAIN

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class LiveFrontend:
    url: str
    token: str
    data_dir: Path

    def register(self, name: str, **facts: object) -> str:
        """A worker's registration; answers the node's id."""
        reply = httpx.post(
            f"{self.url}/api/node/register",
            json={"name": name, "address": "127.0.0.1:50051", "token": self.token, **facts},
            headers={"Authorization": f"Bearer {self.token}"},
            verify=PLAIN,
        )
        reply.raise_for_status()
        node_id: str = reply.json()["id"]
        return node_id

    def remuda(self, *arguments: str, answer: str | None = None, **environ: str) -> Result:
        """Run a command as a person on the frontend's own machine would."""
        clean = {"REMUDA_URL": None, "REMUDA_API_KEY": None, "REMUDA_CONFIG": None}
        env = {**clean, "REMUDA_DATA_DIR": str(self.data_dir), **environ}
        return CliRunner().invoke(root, arguments, env=env, input=answer, prog_name="remuda")


@pytest.fixture(autouse=True)
def _log_has_its_own_output() -> Iterator[None]:
    """The frontend and the commands share this process; what it logs must not get into their output, nor
    go on being written there when a command that set up the log has ended."""
    with log_left_as_it_was():
        log.configure("error", stream=sys.__stderr__)
        yield


@pytest.fixture(scope="module")
def frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFrontend]:
    """Nobody is let in without approval."""
    with frontend_in(tmp_path_factory.mktemp("frontend")) as live:
        yield live


@contextmanager
def frontend_in(data_dir: Path) -> Iterator[LiveFrontend]:
    shipped = ({"name": "remuda", "url": "builtin:models"},)
    settings = FrontendSettings(data_dir=data_dir, port=0, model_galleries=shipped)
    with start_blocking_portal("asyncio") as portal:
        policy = AdmissionPolicy(auto_approve=False)
        running = running_frontend(settings, policy, probes_commands=False)
        with portal.wrap_async_context_manager(running) as live:
            assert live.token is not None
            yield LiveFrontend(live.local_url, live.token.get_secret_value(), data_dir)
