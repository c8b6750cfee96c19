"""Every bound of the llama.cpp backend, named with its unit."""

CALLS_WAITING_MAX = 256  # For a slot; further calls are refused as busy.
SILENCE_S = 300.0  # From an engine that works on a call: it reports each batch of a prompt and each token.
ANSWER_S = 300.0  # For a call that has one answer, such as an embedding.
CONNECT_S = 10.0
UNREAD_BYTES_MAX = 1 << 20  # Of one answer; beyond it the engine waits until the caller has read.
ANSWER_BYTES_MAX = 64 << 20
STOP_S = 5.0  # For the engine's process to be gone after it was killed.
LOAD_LOG_BYTES_MAX = 16 << 10  # Of what the engine says while it loads, passed on to our log.
# CPU time of one step while an answer is bound by a grammar. The largest grammars that are accepted take one
# or two seconds for a token on a machine of today. A model's option `step_seconds` sets another one.
STEP_S = 10.0
STEP_SECONDS_MAX = 300
STEP_SLACK = 10  # How much slower a token may be than the first one, above all with a long context.
STEP_LOOK_EVERY_S = 0.5
LEFT_S = 10.0  # After a caller has left, for the engine to hear of it.
PARALLEL_DEFAULT = 4
BATCH_DEFAULT = 512  # Tokens of a prompt that are worked on before anything else is looked at.
EMBEDDING_BATCH_DEFAULT = 2048
EMBEDDING_BATCH_MAX = 8192  # One text must fit into one batch, and memory grows with the batch.
# Prompts kept outside of the context for later calls. The engine's own default is 8 GiB, more than many
# machines have to spare.
PROMPT_CACHE_MIB = 1024
HTTP_THREADS_SPARE = 8  # Beyond one for each slot, for calls that need none.
