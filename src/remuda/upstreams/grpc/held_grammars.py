"""Grammars that held an engine until it had to be ended: no engine is given them again for a while.

Kept here because the frontend outlives engines and their backends, and stands before all replicas of a model.
Frontends do not share this.
"""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from remuda.core.clock import Clock
from remuda.core.errors import Invalid
from remuda.core.gbnf import canonical
from remuda.rpc import backend_pb2 as pb
from remuda.rpc.metadata import BY_ONE_OF_SEVERAL, BY_THIS_CALL, ENGINE_ENDED
from remuda.upstreams.http2.failures import CallFailed

KEPT_MAX: Final = 256
KEPT_S: Final = 3600.0
_KEY: Final = ENGINE_ENDED.encode()
# One of several is only suspected: it is refused the second time, unless it was answered in between.
_STRIKES: Final = {BY_THIS_CALL.encode(): 2, BY_ONE_OF_SEVERAL.encode(): 1}
_STRIKES_MAX: Final = 2
_READ_CHARS_MAX: Final = 32 << 10  # Longer texts are compared but for their blanks: a request waits for this.
SCHEMAS: Final = ("json_schema", "response_format")  # In the metadata.


@dataclass(slots=True)
class _Strikes:
    count: int
    last_s: float


class HeldGrammars:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[bytes, _Strikes] = {}

    def check(self, options: pb.PredictOptions) -> None:
        """Invalid for a grammar, or what an engine makes one of, that lately held one."""
        if not self._kept:
            return
        found = self._kept.get(_hash(options))
        if found is None or found.count < _STRIKES_MAX:
            return
        ago_s = self._clock.monotonic() - found.last_s
        if ago_s < KEPT_S:
            raise Invalid(
                "the grammar of this request (its own or made of its JSON schema or tools) held an engine "
                f"{ago_s / 60:.0f} minutes ago until the engine had to be ended; it is refused for "
                f"{(KEPT_S - ago_s) / 60:.0f} minutes more",
                hint="simplify it: fewer parts that may be left out, alternatives that share their beginning",
            )

    def failed(self, options: pb.PredictOptions, failed: CallFailed) -> None:
        """A call with these options failed; note it if an engine was ended because of it."""
        strikes = _STRIKES.get(failed.metadata.get(_KEY, b""), 0)
        if not strikes:
            return
        key, now_s = _hash(options), self._clock.monotonic()
        before = self._kept.pop(key, None)
        earlier = before.count if before is not None and now_s - before.last_s < KEPT_S else 0
        self._kept[key] = _Strikes(earlier + strikes, now_s)
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    def answered(self, options: pb.PredictOptions) -> None:
        """A call with these options was answered: its grammar was not the one."""
        if self._kept:
            self._kept.pop(_hash(options), None)


def _hash(options: pb.PredictOptions) -> bytes:
    texts = (options.Tools, options.ToolChoice, *map(options.Metadata.get, SCHEMAS))
    parts = [_plain_grammar(options.Grammar).encode(), *(_plain_json(text or "").encode() for text in texts)]
    return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).digest()


def _plain_grammar(text: str) -> str:
    """Without what makes no difference to an engine, or a blank more would let a grammar through again."""
    return canonical(text) if len(text) <= _READ_CHARS_MAX else " ".join(text.split())


def _plain_json(text: str) -> str:
    if len(text) <= _READ_CHARS_MAX:
        with suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.encode(msgspec.json.decode(text)).decode()
    return " ".join(text.split())
