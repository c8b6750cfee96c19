"""gRPC calls over HTTP/2, with no more than a frontend needs of either: requests of one message, no TLS, no
compression, no server push. Knows nothing of what the messages say."""
