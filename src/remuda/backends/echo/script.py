"""What a call is to do besides echoing: keys beginning with `echo_`, as texts. Pure."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass

import grpc

PREFIX = "echo_"
_WIDTH_USUAL = 64
_WIDTH_MAX = 1 << 16
# What `echo_..._at_token` means where the fault itself was not named.
_USUAL = {"fail": "INTERNAL", "crash": "1", "hang": "true"}


@dataclass(frozen=True, slots=True)
class Script:
    """A fault with `at_token` n happens when n tokens have been said."""

    delay_s: float = 0.0  # Before the first token.
    tokens_per_s: float = 0.0  # 0: as fast as can be.
    fail: str = ""  # The gRPC status.
    fail_at_token: int = 0
    crash: str = ""  # The exit code, or the signal.
    crash_at_token: int = 0
    hang: bool = False
    hang_at_token: int = 0
    garbage: bool = False
    big_message_bytes: int = 0
    load_delay_s: float = 0.0
    load_fail: str = ""  # A gRPC status, or the message of an answer without success.
    load_crash: str = ""
    dim: int = _WIDTH_USUAL


def read_script(options: Mapping[str, str]) -> Script:
    """What `told` says; keys of others are ignored. ValueError names the key that cannot be understood."""
    keys = _Keys(options)
    script = Script(
        delay_s=keys.number("delay_ms") / 1000,
        tokens_per_s=keys.number("token_rate"),
        fail=keys.status("fail"),
        fail_at_token=keys.count("fail_at_token"),
        crash=keys.end("crash"),
        crash_at_token=keys.count("crash_at_token"),
        hang=keys.flag("hang"),
        hang_at_token=keys.count("hang_at_token"),
        garbage=keys.flag("garbage"),
        big_message_bytes=keys.count("big_message_bytes"),
        load_delay_s=keys.number("load_delay_ms") / 1000,
        load_fail=keys.text("load_fail"),
        load_crash=keys.end("load_crash"),
        dim=keys.count("dim", usual=_WIDTH_USUAL, least=1, most=_WIDTH_MAX),
    )
    keys.check_all_known()
    return script


class _Keys:
    """Takes one key after the other, and knows which were not taken."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._left = {
            key.removeprefix(PREFIX): text for key, text in options.items() if key.startswith(PREFIX)
        }
        self._known: list[str] = []
        for fault, usual in _USUAL.items():
            if f"{fault}_at_token" in self._left:
                self._left.setdefault(fault, usual)

    def check_all_known(self) -> None:
        if self._left:
            known = ", ".join(PREFIX + name for name in self._known)
            raise ValueError(f"echo has no {PREFIX}{min(self._left)}; it has {known}")

    def text(self, name: str) -> str:
        self._known.append(name)
        return self._left.pop(name, "")

    def flag(self, name: str) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise ValueError(f"{PREFIX}{name} is true or false, not {text!r}")
        return text == "true"

    def number(self, name: str) -> float:
        text = self.text(name) or "0"
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise ValueError(f"{PREFIX}{name} is a number from 0, not {text!r}")
        return number

    def count(self, name: str, *, usual: int = 0, least: int = 0, most: int = 1 << 31) -> int:
        text = self.text(name) or str(usual)
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise ValueError(f"{PREFIX}{name} is a whole number from {least} to {most}, not {text!r}")
        return int(text)

    def status(self, name: str) -> str:
        text = self.text(name)
        if text and not is_failure(text):
            raise ValueError(f"{PREFIX}{name} is a gRPC status such as UNAVAILABLE, not {text!r}")
        return text

    def end(self, name: str) -> str:
        text = self.text(name)
        if text and text not in signal.Signals.__members__ and not (text.isdigit() and int(text) < 256):
            raise ValueError(f"{PREFIX}{name} is an exit code or a signal such as SIGKILL, not {text!r}")
        return text


def is_failure(status: str) -> bool:
    return status in grpc.StatusCode.__members__ and status != "OK"
