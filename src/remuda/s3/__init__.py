"""Object storage that speaks S3: the only user of its client library."""
