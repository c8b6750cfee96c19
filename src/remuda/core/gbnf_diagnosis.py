"""Why llama.cpp refuses a grammar in GBNF. Pure.

Its answer says only that the grammar was not parsed; the reason stays in its log, and does not always name
the rule. Asked only after a refusal, so that nothing an engine would take is refused here.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from remuda.core.slices import Budget, Sliced

REPEATED_RULES_MAX: Final = 1999  # Rules that one repetition may be written out to.

_STEPS_MAX: Final = 16 << 20  # Never reached: the budget only cuts the work into slices.
_SHOWN_CHARS_MAX: Final = 60
_DIGITS_MAX: Final = 9
_WRONG_ESCAPE: Final = re.compile(
    r"\\(?:[^xuUtrn\\\"\[\]-]|x(?![0-9A-Fa-f]{2})|u(?![0-9A-Fa-f]{4}))", re.DOTALL
)
_MARKS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(slots=True)
class _Group:
    """What is being read: a rule, or a group in it."""

    known_before: int = 0  # Rules that the engine knew when it began.
    begun_at: int = 0
    repeatable: bool = False  # There is something that a repetition could repeat.
    parts: int = 1  # Rules that the engine has made of it.
    part_at: int = 0  # Where that begins in the text.


@dataclass(slots=True)
class _Reader:
    """Follows the engine from token to token; `wrong` is what it would stop at."""

    text: str
    wrong: str = ""
    rule: str = ""
    defined: set[str] = field(default_factory=set)
    named: dict[str, str] = field(default_factory=dict)  # Each with the rule that names it first.
    _symbols: set[str] = field(default_factory=set)
    _made: int = 0  # Rules made of groups and repetitions.
    _open: list[_Group] = field(default_factory=lambda: [_Group()])
    _name: re.Match[str] | None = None  # Which may turn out to begin a rule.
    _at_line_start: bool = True  # The next token begins a line where a rule has to begin.
    _name_at_line_start: bool = False
    _may_break: bool = False  # A line may end here without ending the rule.

    def take(self, token: re.Match[str]) -> None:
        kind = token.lastgroup or ""
        if kind in ("comment", "space"):
            breaks = kind == "space" and not {"\n", "\r"}.isdisjoint(token[0])
            self._at_line_start |= breaks and len(self._open) == 1 and not self._may_break
            return
        begins_line, self._at_line_start = self._at_line_start, False
        if kind == "rule":
            self._define()
        else:
            self._settle_name()
            if kind == "name":
                self._name, self._name_at_line_start = token, begins_line
            elif begins_line:
                self._stop(_NO_RULE.format(_shown(token[0])))
            else:
                _TAKERS.get(kind, _Reader._item)(self, token)
        self._may_break = kind in ("rule", "either")

    def end(self) -> None:
        self._settle_name()
        if len(self._open) > 1:
            self._stop("a ( is not closed")

    def _define(self) -> None:
        name, self._name = self._name, None
        if len(self._open) > 1:
            self._stop("a ( is not closed")
        if name is None or not self._name_at_line_start:
            self._stop("::= has no name before it that begins a line")
            return
        self.rule = name[0]
        self.defined.add(self.rule)
        self._symbols.add(self.rule)
        if "_" in self.rule:
            self._stop("the name has _ in it, where only letters, digits and - may be")
        self._open = [_Group()]

    def _settle_name(self) -> None:
        """The name that came last refers to a rule."""
        name, self._name = self._name, None
        if name is None:
            return
        if self._name_at_line_start:
            self._stop(_NO_RULE.format(_shown(name[0])))
        self.named.setdefault(name[0], self.rule)
        self._symbols.add(name[0])
        self._item(name)

    def _item(self, token: re.Match[str]) -> None:
        group = self._open[-1]
        group.repeatable, group.parts, group.part_at = True, 1, token.start()

    def _quoted(self, token: re.Match[str]) -> None:
        text = token[0]
        if len(text) < 2 or not text.endswith('"' if text.startswith('"') else "]"):
            self._stop(f"{_shown(text)} has no end")
        elif found := _WRONG_ESCAPE.search(text):
            self._stop(
                f"{_shown(text)} has {found[0]}, which is no escape here; classes are written as [0-9]"
            )
        self._item(token)

    def _open_group(self, token: re.Match[str]) -> None:
        self._open.append(_Group(self._known, token.start()))
        self._made += 1

    def _close_group(self, token: re.Match[str]) -> None:
        if len(self._open) == 1:
            self._stop("a ) has no ( before it")
            return
        ended = self._open.pop()
        around = self._open[-1]
        around.repeatable, around.part_at = True, ended.begun_at
        around.parts = max(1, self._known - ended.known_before)

    def _either(self, token: re.Match[str]) -> None:
        self._open[-1].repeatable = False

    def _repeat(self, token: re.Match[str]) -> None:
        group = self._open[-1]
        least, most = _counts(token)
        if not group.repeatable:
            self._stop(f"{token[0]} has nothing before it to repeat")
            return
        times = max(most or least, 1)
        if group.parts * times > REPEATED_RULES_MAX:
            part = _shown(self.text[group.part_at : token.start()].strip())
            self._stop(
                f"{part} is repeated {token[0]}, which the engine counts as {group.parts * times} "
                f"repetitions, and {REPEATED_RULES_MAX} is the most; repeat it less often, or without an "
                "upper bound"
            )
        self._made += 1 if most is None else max(most - least, 0)
        group.parts *= times

    @property
    def _known(self) -> int:
        return len(self._symbols) + self._made

    def _stop(self, words: str) -> None:
        where = f"in the rule {self.rule}, " if self.rule else ""
        self.wrong = self.wrong or f"{where}{words}"


_NO_RULE: Final = "the line that begins with {} begins no rule; what goes on over lines needs ( ) around it"
_TAKERS: Final[Mapping[str, Callable[[_Reader, re.Match[str]], None]]] = {
    "literal": _Reader._quoted,
    "class": _Reader._quoted,
    "open": _Reader._open_group,
    "close": _Reader._close_group,
    "either": _Reader._either,
    "times": _Reader._repeat,
    "mark": _Reader._repeat,
}


def why_refused(text: str, tokens: Iterator[re.Match[str]]) -> Sliced[str]:
    """What is wrong with the grammar, with the rule; empty when nothing is found. `tokens` are its own."""
    reader, budget = _Reader(text), Budget("the grammar", _STEPS_MAX)
    for token in tokens:
        reader.take(token)
        if reader.wrong:
            return reader.wrong
        if budget.spend(4):
            yield
    reader.end()
    missing = next((name for name in reader.named if name not in reader.defined), None)
    if reader.wrong:
        return reader.wrong
    if missing is not None:
        return f"the rule {reader.named[missing]} names {missing[:_SHOWN_CHARS_MAX]}, which is not defined"
    return "" if "root" in reader.defined else "it has no rule named root, with which texts begin"


def _counts(token: re.Match[str]) -> tuple[int, int | None]:
    if token.lastgroup == "mark":
        return _MARKS[token[0]]
    least, most = (int(token[name][:_DIGITS_MAX] or 0) for name in ("least", "most"))
    return least, most if token["most"] else None if token["comma"] else least


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."
