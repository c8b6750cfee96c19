"""Every bound of the HTTP/2 client, named with its unit."""

CONNECT_S = 5.0  # Until the server has introduced itself.
SENT_BYTES_MAX = 50 << 20  # Of one message: what LocalAI's peers and ours take.
RECEIVED_BYTES_MAX = 64 << 20
WINDOW_BYTES = 65_535  # Of unread messages, for each call; what HTTP/2 begins with.
HEADERS_BYTES_MAX = 64 << 10  # As sent, and as unpacked.
BLOCKS_KNOWN_MAX = 64  # Blocks of headers that are known by sight.
UNREAD_BYTES_MAX = 1 << 20  # Of what we sent, when the server wants more answers without having read it.
CONNECTIONS_MAX = 8  # To one backend, when it takes only so many calls over each.
PIECE_BYTES_MAX = 64 << 10  # Of one frame, when the server takes more.
WORDS_CHARS_MAX = 4096  # Of a status.
