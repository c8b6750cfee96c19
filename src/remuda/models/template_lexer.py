"""Tokenizes Go templates: the text between actions, and the words within them. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from remuda.core.errors import Misconfigured

TokenKind = Literal["text", "number", "field", "variable", "word", "mark"]

_OPEN: Final = re.compile(r"\{\{(?P<trim>-(?=\s|\.[A-Za-z_]))?\s*(?P<comment>/\*)?")
_COMMENT_END: Final = re.compile(r"\*/\s*?(?P<trim>\s-)?\}\}")
_CLOSE: Final = re.compile(r"\s*?(?P<trim>\s-)?\}\}")
_WORDS: Final = re.compile(
    r"""\s*(?:
    (?P<text> "(?:[^"\\\n]|\\.)*" | `[^`]*` )
  | (?P<number> [+-]?\d+(?:\.\d+)? )
  | (?P<field> \.[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)* | \. )
  | (?P<variable> \$\w*(?:\.[A-Za-z_]\w*)* )
  | (?P<word> [A-Za-z_]\w* )
  | (?P<mark> := | [()|,=] )
    )""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<letter>.))")
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_SHOWN_CHARS_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class Word:
    kind: TokenKind
    text: str  # Of a text in quotes: what it stands for.


@dataclass(frozen=True, slots=True)
class Action:
    words: tuple[Word, ...]
    line: int


def refuse(line: int, complaint: str) -> Misconfigured:
    return Misconfigured(f"line {line}: {complaint}")


def take_apart(template: str) -> Iterator[str | Action]:
    """Texts, from which blanks are gone where a marker says so, and actions; comments leave nothing."""
    at, trim = 0, False
    while (opened := _OPEN.search(template, at)) is not None:
        text = template[at : opened.start()]
        yield _trimmed(text, before=trim, after=bool(opened["trim"]))
        line = template.count("\n", 0, opened.start()) + 1
        if opened["comment"]:
            closed = _COMMENT_END.search(template, opened.end())
            if closed is None:
                raise refuse(line, "a comment does not end")
        else:
            words, closed = _words(template, opened.end(), line)
            yield Action(words, line)
        at, trim = closed.end(), bool(closed["trim"])
    yield _trimmed(template[at:], before=trim, after=False)


def _trimmed(text: str, *, before: bool, after: bool) -> str:
    text = text.lstrip() if before else text
    return text.rstrip() if after else text


def _words(template: str, at: int, line: int) -> tuple[tuple[Word, ...], re.Match[str]]:
    words: list[Word] = []
    while (closed := _CLOSE.match(template, at)) is None:
        found = _WORDS.match(template, at)
        if found is None:
            rest = template[at:].strip()[:_SHOWN_CHARS_MAX]
            raise refuse(line, f"{rest!r} is not understood" if rest else "an action does not end")
        words.append(_word(found, line))
        at = found.end()
    return tuple(words), closed


def _word(found: re.Match[str], line: int) -> Word:
    match found.lastgroup:
        case "text":
            return Word("text", _unquoted(found["text"], line))
        case "number" | "field" | "variable" | "word" | "mark" as kind:
            return Word(kind, found[kind])
    raise AssertionError("every alternative has a name")


def _unquoted(quoted: str, line: int) -> str:
    def meant(escape: re.Match[str]) -> str:
        if escape["code"]:
            return chr(int(escape["code"], 16))
        if escape["letter"] not in _ESCAPES:
            raise refuse(line, f"{escape[0]} stands for nothing that is understood")
        return _ESCAPES[escape["letter"]]

    inner = quoted[1:-1]
    return inner if quoted.startswith("`") else _ESCAPE.sub(meant, inner)
