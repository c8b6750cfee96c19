"""What clients are told of a database in trouble names no host, no user and no database."""

import pytest

from remuda.store.connections import plain_reason, unusable


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (
            'connection failed: connection to server at "10.0.0.3", port 5432 failed: Connection refused',
            "it refuses connections",
        ),
        (
            'connection to server at "db" failed: FATAL: password authentication failed for user "remuda"',
            "it refuses our login",
        ),
        ('could not translate host name "db.internal" to address', "the name of its host is not known"),
        ("database or disk is full", "its disk is full"),
        ("attempt to write a readonly database", "it takes no changes: it is read-only"),
        ("database is locked", "another program holds it locked"),
        ("terminating connection due to administrator command", "the connection to it was lost"),
        ("something about 10.0.0.3 that nobody has seen before", "the frontend's log says why"),
    ],
)
def test_the_words_of_a_driver_are_for_the_log(driver: str, words: str) -> None:
    error = unusable("postgresql://remuda@10.0.0.3/remuda", driver, plain_reason(driver))
    assert error.public == f"the database cannot be used: {words}"
    assert "10.0.0.3" in error.message
    assert error.problem().message == error.public
