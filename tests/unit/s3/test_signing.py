"""Signatures of requests to object storage."""

import hashlib
from datetime import UTC, datetime

from remuda.s3.signing import SigningKeys, canonical_query, object_path, signed_headers, signed_query

KEYS = SigningKeys("us-east-1", "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")


def test_the_signature_is_the_one_of_amazons_example() -> None:
    """ "Example: PUT Object" of the documentation of Signature Version 4."""
    body = b"Welcome to Amazon S3."

    headers = signed_headers(
        "PUT",
        "examplebucket.s3.amazonaws.com",
        "/test%24file.text",
        {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
        keys=KEYS,
        payload_sha256=hashlib.sha256(body).hexdigest(),
        now=datetime(2013, 5, 24, tzinfo=UTC),
    )

    assert headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class, "
        "Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
    )


def test_empty_parts_of_a_key_stay() -> None:
    assert object_path("b", "ephemeral/1//tmp/a b%ü.wav") == "/b/ephemeral/1//tmp/a%20b%25%C3%BC.wav"


def test_a_signed_address_is_the_one_of_amazons_example() -> None:
    """ "Authenticating Requests: Using Query Parameters", GET of test.txt for a day."""
    query = signed_query(
        "examplebucket.s3.amazonaws.com",
        "/test.txt",
        keys=KEYS,
        valid_s=86400,
        now=datetime(2013, 5, 24, tzinfo=UTC),
    )
    assert "X-Amz-Expires=86400" in query
    assert query.endswith("&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404")


def test_a_query_is_written_in_order_and_escaped() -> None:
    assert canonical_query({"uploadId": "a/b+c=", "partNumber": "2", "x": ""}) == (
        "partNumber=2&uploadId=a%2Fb%2Bc%3D&x="
    )
