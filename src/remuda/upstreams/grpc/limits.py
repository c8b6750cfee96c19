"""Every bound of the gRPC upstream, named with its unit."""

SILENCE_S = 300.0  # Between two replies of a stream: a long prompt on a slow machine takes minutes.
WHOLE_S = 3600.0  # For an answer that comes in one piece.
LEFT_S = 330.0  # For an engine to finish its step after the client has left, or to be ended in it.
LEFT_UNHEARD_S = 90.0  # The same of an engine that has written nothing yet: it may be at the prompt.
SIDE_BY_SIDE_MAX = 8  # Calls of one request that are open at once.
WORDS_CHARS_MAX = 500  # Of a backend's own message, as clients get it.
HEALTH_S = 3.0
HTTP_POLL_S = 0.5
HTTP_CALL_S = 5.0
HTTP_MISSING_S = 15.0  # For a worker to say again that a server runs which it has said to run.
INPUTS_MAX = 2048  # Of one request for embeddings, and documents to be ranked.
GENERATIONS_MAX = 256  # Of one request: prompts, times the answers wanted for each.
LOAD_S = 24 * 3600.0  # No load takes longer; its caller sets the bound that counts.
