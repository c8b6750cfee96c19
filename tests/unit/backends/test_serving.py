"""Addresses, and what a backend loads before it can answer."""

import subprocess
import sys

import pytest

from remuda.backends.serving import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:50051", Address("0.0.0.0", 50051)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:8080", Address("::1", 8080)),
    ],
)
def test_an_address_is_read_and_written_alike(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "localhost", ":50051", "localhost:", "::1:50051", "[]:1", "unix:path"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"not HOST:PORT|not a port number"):
        parse_address(text)


@pytest.mark.parametrize("port", ["65536", "-1", "http", "\N{SUPERSCRIPT TWO}"])
def test_what_is_no_port_is_refused_with_the_limit(port: str) -> None:
    with pytest.raises(ValueError, match="up to 65535"):
        parse_address(f"localhost:{port}")


def test_nothing_heavy_is_imported() -> None:
    program = (
        "import sys, remuda.backends.echo.__main__; print(*{name.split('.')[0] for name in sys.modules})"
    )
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy = {"aiohttp", "fastapi", "httpx", "nats", "numpy", "pydantic", "rich", "sqlalchemy", "structlog"}
    assert heavy & set(listed.stdout.split()) == set()
