"""A host that does not exist is told from one that cannot be looked up now."""

import socket
from typing import Any, cast

import aiohttp
import pytest
from yarl import URL

from remuda.oci.errors import UnknownHost, Unreached
from remuda.oci.transport import _not_reached


@pytest.mark.parametrize(
    ("number", "unknown", "said"),
    [
        (socket.EAI_NONAME, True, "hbu.test:443 cannot be reached: there is no host hbu.test"),
        (socket.EAI_AGAIN, False, "hbu.test:443 cannot be reached: its host name cannot be looked up"),
    ],
)
def test_the_name_service_tells_them_apart(number: int, unknown: bool, said: str) -> None:
    trouble = aiohttp.ClientConnectorDNSError(cast(Any, None), socket.gaierror(number, "as libc has it"))
    error = _not_reached(URL("https://hbu.test/v2/"), trouble, 60)
    assert isinstance(error, Unreached)
    assert (isinstance(error, UnknownHost), error.message) == (unknown, said)
