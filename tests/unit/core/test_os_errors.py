"""What the operating system refuses is told without numbers and names of calls."""

import errno
import socket
import ssl

import pytest

from remuda.core.os_errors import connect_trouble, os_reason, without_number


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (IsADirectoryError(errno.EISDIR, "Is a directory", "/tmp"), "Is a directory"),
        (OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (socket.gaierror(-3, "Temporary failure in name resolution"), "its host name cannot be looked up"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), "a part of its path is not a folder"),
        (OSError("no more"), "no more"),
        (ConnectionResetError(), "the connection was closed"),
        (TimeoutError(), "no answer in time"),
    ],
)
def test_an_error_of_the_system_is_told_in_words(error: OSError, words: str) -> None:
    assert os_reason(error) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[Errno -3] Temporary failure in name resolution", "its host name cannot be looked up"),
        ("[Errno 113] No route to host", "No route to host"),
        ("Server disconnected", "Server disconnected"),
    ],
)
def test_the_number_of_an_error_is_left_out(text: str, words: str) -> None:
    assert without_number(text) == words


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"),
            "connection refused: nothing listens there",
        ),
        (OSError(errno.EHOSTUNREACH, "Connect call failed ('10.0.0.9', 1)"), "No route to host"),
        (socket.gaierror(-2, "Name or service not known"), "unknown host"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "it does not speak HTTPS"),
        (ssl.SSLError(1, "[SSL: NO_CIPHERS_AVAILABLE] none"), "[SSL: NO_CIPHERS_AVAILABLE] none"),
        (ConnectionResetError(), "the connection was closed"),
        (TimeoutError(), "no answer in time"),
    ],
)
def test_why_there_is_no_connection_is_told_in_words(error: OSError, why: str) -> None:
    assert connect_trouble(error, None).why == why


def test_a_certificate_that_has_expired_is_not_blamed_on_the_address() -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = 10, "certificate has expired"
    trouble = connect_trouble(error, None)
    assert trouble.why == "its certificate is not valid: certificate has expired"
    assert trouble.hint.startswith("replace the server's certificate")
