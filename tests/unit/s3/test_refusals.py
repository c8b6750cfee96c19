"""What storage refuses is told in words that a person can act on."""

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import SecretStr

from remuda.core.errors import NotFound, RemudaError
from remuda.s3.account import S3Account, StorageRefused, StorageUnreached
from remuda.s3.refusals import StorageRefusal, explain

NOW = datetime(2030, 1, 2, 12, tzinfo=UTC)
ACCOUNT = S3Account("http://s3.test", "models", "us-east-1", SecretStr("AK"), SecretStr("secret"))
UNSIGNED = S3Account("http://s3.test", "models")


def body(code: str, more: str = "") -> str:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>raw words</Message>{more}</Error>"


@pytest.mark.parametrize(
    ("refusal", "kind", "said", "advised"),
    [
        (
            StorageRefusal(403, body("InvalidAccessKeyId")),
            StorageRefused,
            "http://s3.test knows no key AK",
            "correct --storage-access-key",
        ),
        (
            StorageRefusal(403, body("SignatureDoesNotMatch"), at=NOW - timedelta(hours=2)),
            StorageRefused,
            "the secret that is used with the key AK is wrong",
            "correct --storage-secret-key",
        ),
        (
            StorageRefusal(403, body("AccessDenied"), at=NOW),
            StorageRefused,
            "the key AK may not do this with s3://models/a.gguf",
            "right to read and list",
        ),
        (StorageRefusal(400, body("ExpiredToken")), StorageRefused, "session token", "make a new one"),
        (StorageRefusal(403, body("InvalidObjectState")), StorageRefused, "is archived", "restore it"),
        (
            StorageRefusal(404, body("NoSuchBucket")),
            NotFound,
            "http://s3.test has no bucket models",
            "check the name of the bucket; check --storage-url",
        ),
        (
            StorageRefusal(403),
            StorageRefused,
            "access denied to s3://models/a.gguf with the key AK",
            "check --storage-access-key and --storage-secret-key, and what they may do",
        ),
        (
            StorageRefusal(301, body("PermanentRedirect"), region="eu-west-1"),
            StorageRefused,
            "the bucket models is in the region eu-west-1, and us-east-1 was asked",
            "set --storage-region to eu-west-1",
        ),
        (
            StorageRefusal(400, body("AuthorizationHeaderMalformed", "<Region>eu-north-1</Region>")),
            StorageRefused,
            "in the region eu-north-1",
            "set --storage-region to eu-north-1",
        ),
        (
            StorageRefusal(301, ""),
            StorageRefused,
            "does not serve the bucket models under region us-east-1",
            "check --storage-region",
        ),
        (
            StorageRefusal(403, body("RequestTimeTooSkewed"), at=NOW - timedelta(minutes=40)),
            StorageRefused,
            "whose clock is 40 min ahead of the storage's",
            "set this machine's clock",
        ),
        (
            StorageRefusal(403, body("AccessDenied"), at=NOW + timedelta(hours=1)),
            StorageRefused,
            "whose clock is 60 min behind the storage's",
            "NTP",
        ),
        (
            StorageRefusal(silent="connection refused: nothing listens there"),
            StorageUnreached,
            "http://s3.test cannot be reached: connection refused",
            "check --storage-url",
        ),
    ],
)
def test_each_refusal_says_what_is_wrong_and_what_helps(
    refusal: StorageRefusal, kind: type[RemudaError], said: str, advised: str
) -> None:
    error = explain(refusal, ACCOUNT, "a.gguf", NOW)
    assert type(error) is kind
    assert said in error.message
    assert advised in error.hint
    assert "raw words" not in str(error)


def test_who_has_no_key_is_told_where_to_put_one() -> None:
    error = explain(StorageRefusal(403, body("AccessDenied"), at=NOW), UNSIGNED, "a.gguf", NOW)
    assert error is not None
    assert error.message == "s3://models/a.gguf may not be read without a key"
    assert error.hint == "set --storage-access-key and --storage-secret-key"


def test_amazon_is_not_asked_unnoticed() -> None:
    error = explain(StorageRefusal(silent="unknown host"), S3Account("", "models"), "a.gguf", NOW)
    assert error is not None
    assert error.message == "Amazon S3 cannot be reached: unknown host"
    assert "no --storage-url is set for this bucket, so Amazon is asked" in error.hint


@pytest.mark.parametrize(
    "refusal",
    [StorageRefusal(206), StorageRefusal(404, body("NoSuchKey")), StorageRefusal(500, body("InternalError"))],
)
def test_what_says_nothing_of_it_is_left_to_the_request_that_failed(refusal: StorageRefusal) -> None:
    assert explain(refusal, ACCOUNT, "a.gguf", NOW) is None
