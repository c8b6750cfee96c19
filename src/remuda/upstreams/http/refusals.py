"""What an HTTP server's error answer means for the client and for the replica."""

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from remuda.inference.failures import (
    HIDDEN,
    SECRET_CHARS_MIN,
    ContextExceeded,
    Fault,
    RateLimited,
    RequestUnsupported,
    UpstreamFailed,
    clients_fault,
)
from remuda.inference.model import ReplicaEndpoint

REFUSAL_HEADER: Final = b"x-remuda-refusal"  # Set by a worker's own answers, before its backend has spoken.
UNREAD_HEADER: Final = b"x-remuda-unread"  # The backend hung up before it had read all of the request.
NOT_READY: Final = b"not_ready"  # In it: there is no such process, or it takes no connections.
JSON: Final = b"application/json"
EVENTS: Final = b"text/event-stream"
_WORDS_MAX: Final = 500
_DOES_NOT_OFFER: Final = "the model's backend does not offer this kind of request"
_LOST: Final = ("does not exist", "not found", "not loaded")
_QUOTED: Final = re.compile(r"""`[^`]*`|"[^"]*"|(?<!\w)'[^']*'(?!\w)""")


class _Error(msgspec.Struct):
    message: str = ""
    code: object = None


class _Body(msgspec.Struct):
    """As servers put it: OpenAI's way, or with the words somewhere at the top."""

    error: _Error | str | None = None
    message: str | None = None
    code: object = None
    detail: msgspec.Raw = msgspec.Raw(b"")


def failure(status: int, refusal: bytes, body: bytes, *, unread: bool = False) -> UpstreamFailed | None:
    """The failure that an answer with this status is; None when it is for the client as it is. `unread`: the
    backend had not read all of the request when it ended, so that it was not this request that ended it."""
    words = in_words(body) or f"HTTP status {status}"
    if refusal == b"backend_failed":
        return UpstreamFailed(Fault.BROKE, words, unsent=unread)
    if refusal:
        return UpstreamFailed(Fault.NOT_LOADED, words, status=503)
    if status == 503:  # It may just be full: that is no reason to stop it, only to ask how it is.
        return UpstreamFailed(Fault.BROKE, words, status=503)
    if status in (401, 403):
        return UpstreamFailed(
            Fault.UNREACHABLE,
            f"the worker refused this frontend: {words}",
            hint="both need the same registration token",
        )
    if status == 404 and _lost_its_model(body):
        return UpstreamFailed(Fault.NOT_LOADED, words, status=503)
    if status in (404, 405, 501):
        return RequestUnsupported(f"{_DOES_NOT_OFFER}: {words}")
    own = clients_fault(words, "the model", f"the backend refuses this: {words}")
    if status >= 400 and own is not None:
        return own
    if status >= 500:
        return UpstreamFailed(Fault.FAILED, f"the backend failed: {words}")
    if status < 400:
        return UpstreamFailed(
            Fault.BROKE, f"the backend answered with HTTP status {status}, which makes no sense"
        )
    return None


_RETRY_S: Final = (
    5.0  # After which a server is asked again that says it is asked too often, but not until when.
)
_RETRY_LEAST_S: Final = 0.1
_RETRY_MOST_S: Final = 86_400.0  # However long it says.


def server_failure(
    server: str, status: int, headers: Mapping[bytes, bytes], body: bytes
) -> UpstreamFailed | None:
    """The same for an adopted server: it knows nothing of workers, and some of what it says is for those who
    look after its key."""
    words = in_words(body) or f"HTTP status {status}"
    if 300 <= status < 400:
        leads = headers.get(b"location", b"").decode("latin-1")[:200] or "another address"
        return UpstreamFailed(
            Fault.BROKE,
            f"the server {server} redirects to {leads}, which is not followed",
            hint="adopt it by the address that it leads to",
        )
    if status in (401, 403):
        return UpstreamFailed(Fault.UNREACHABLE, f"the server {server} refuses its key: {words}", unsent=True)
    if status == 402:
        return UpstreamFailed(
            Fault.UNREACHABLE, f"the server {server} wants to be paid: {words}", unsent=True
        )
    if status == 429:
        return RateLimited(f"the server {server} is asked too often: {words}", _retry_after(headers))
    if status in (502, 503, 504, 529):
        return UpstreamFailed(Fault.BROKE, f"the server {server} cannot answer now: {words}", status=503)
    own = failure(status, b"", body)
    if isinstance(own, ContextExceeded):
        return own.of_server(server)
    if status >= 500 and own is not None and own.fault is Fault.FAILED:  # Another server may do better.
        return UpstreamFailed(Fault.BROKE, f"the server {server} failed: {words}")
    return own


def own_words(failed: UpstreamFailed, endpoint: ReplicaEndpoint) -> UpstreamFailed:
    """A failure as clients may read it: a server's context is not ours to set, and what it repeats of its key
    is left out."""
    if not endpoint.server:
        return failed
    if isinstance(failed, ContextExceeded):
        failed = failed.of_server(endpoint.server)
    failed.hide(endpoint.token)
    return failed


def without_key(text: bytes, endpoint: ReplicaEndpoint) -> bytes:
    """An adopted server's error, without the key that it was sent."""
    if not endpoint.server or len(endpoint.token) < SECRET_CHARS_MIN:
        return text
    return text.replace(endpoint.token.encode(), HIDDEN.encode())


def _retry_after(headers: Mapping[bytes, bytes]) -> float:
    """In seconds, or until a date, which counts from the one that the server puts on its answer."""
    said = headers.get(b"retry-after", b"").decode("latin-1")
    try:
        seconds = float(said)
    except ValueError:
        seconds = _seconds_until(said, headers.get(b"date", b"").decode("latin-1"))
    return min(max(seconds, _RETRY_LEAST_S), _RETRY_MOST_S) if math.isfinite(seconds) else _RETRY_S


def _seconds_until(then: str, sent: str) -> float:
    try:
        until, since = parsedate_to_datetime(then), parsedate_to_datetime(sent)
        return until.timestamp() - since.timestamp()
    except (ValueError, OverflowError):
        return math.nan


def expect_type(headers: Mapping[bytes, bytes], wanted: bytes) -> bytes:
    """The answer's content type. UpstreamFailed when it is not the wanted one."""
    content_type = headers.get(b"content-type", b"")
    if not content_type.lower().startswith(wanted):
        kind = content_type.decode(errors="replace")[:100] or "something of no type"
        raise UpstreamFailed(Fault.BROKE, f"the backend answered with {kind} instead of {wanted.decode()}")
    return content_type


def _lost_its_model(body: bytes) -> bool:
    """Said by the server itself, in the fields made for it: what it quotes may be a client's own words."""
    try:
        found = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, RecursionError):
        return False
    error = found.error if isinstance(found.error, _Error) else _Error(found.error or "")
    texts = (error.message, found.message, error.code, found.code)
    own = _QUOTED.sub("", " ".join(each for each in texts if isinstance(each, str))).lower().replace("_", " ")
    return "model" in own and any(words in own for words in _LOST)


def is_openai_error(body: bytes) -> bool:
    """Whether clients of OpenAI's API understand it as it is."""
    try:
        return isinstance(msgspec.json.decode(body, type=_Body).error, _Error)
    except (msgspec.DecodeError, RecursionError):
        return False


def in_words(body: bytes) -> str:
    """What an error's body says to people, of a length they read."""
    try:
        found = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, RecursionError):
        return _shortened(body.decode(errors="replace"))
    error = found.error.message if isinstance(found.error, _Error) else found.error
    detail = bytes(found.detail) or body
    return _shortened(error or found.message or detail.decode(errors="replace"))


def _shortened(words: str) -> str:
    words = " ".join(words.split())
    return words if len(words) <= _WORDS_MAX else f"{words[:_WORDS_MAX]}..."
