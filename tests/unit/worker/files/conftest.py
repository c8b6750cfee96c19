"""A worker's file server, which all tests of a module share; each finds its folders empty."""

import shutil
from collections.abc import AsyncIterator

import pytest

from tests.support.file_server import FileServer, file_server


@pytest.fixture(scope="module")
async def shared_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FileServer]:
    async with file_server(tmp_path_factory.mktemp("files")) as running:
        yield running


@pytest.fixture
def server(shared_server: FileServer) -> FileServer:
    for folder in (shared_server.models, shared_server.root / "data", shared_server.staging):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    shared_server.reset_client()
    return shared_server
