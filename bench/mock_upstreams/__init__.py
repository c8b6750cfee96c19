"""Replicas that cost next to nothing: canned answers, and streams at the pace of a real engine.

How many tokens a stream has is what the request allows (`max_tokens`); of one that allows `HOLD` or more only
the first comes, and then nothing, until the caller leaves.
"""

HOLD = 1_000_000
TOKENS_PER_S = 50.0
TEXT = "Twelve horses stood at the gate, and the rider took the one that looked back. " * 4
WORDS = (" horse", " rider", " gate", " herd")  # Some gateways end a stream that repeats one word.
MODEL = "m"
