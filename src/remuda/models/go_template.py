"""Go templates, as far as published model files use them, LocalAI's and Ollama's: fields and variables, if,
range, comparisons, parts of lists and toJson. Pure. Whatever else there is in Go is refused by its name, not
guessed at."""

import functools
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from remuda.core.errors import Misconfigured
from remuda.models.template_lexer import Action, Word, refuse, take_apart

TEMPLATE_CHARS_MAX: Final = 256 << 10
OUTPUT_CHARS_MAX: Final = 64 << 20
STEPS_MAX: Final = 20_000  # Of one rendering, which is done at once: some 30 ms.
DEPTH_MAX: Final = 50
_CACHED_MAX: Final = 256

Data = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Constant:
    value: JsonValue


@dataclass(frozen=True, slots=True)
class Path:
    """`.A.B`, `$x.A` or `$.A`: where it begins, and the fields from there on."""

    root: str
    fields: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class TemplateCall:
    function: str
    arguments: tuple["Expression", ...]


Expression = Constant | Path | TemplateCall


@dataclass(frozen=True, slots=True)
class Set:
    variable: str
    value: Expression


@dataclass(frozen=True, slots=True)
class If:
    condition: Expression
    then: "TemplateBlock"
    otherwise: "TemplateBlock"


@dataclass(frozen=True, slots=True)
class RangeAction:
    items: Expression
    variables: tuple[str, ...]  # None, the item's, or the number's and the item's.
    body: "TemplateBlock"
    otherwise: "TemplateBlock"
    line: int


TemplateBlock = tuple["str | Expression | Set | If | RangeAction", ...]


@dataclass(frozen=True, slots=True)
class GoTemplate:
    """Compiled, and safe to be used by many at once."""

    block: TemplateBlock

    def render(self, data: Data) -> str:
        """Misconfigured, naming the line, for a field that `data` has not, or output beyond all bounds."""
        return self.render_counted(data)[0]

    def render_counted(self, data: Data) -> tuple[str, int]:
        """The same, and how many steps it took."""
        rendering = _Rendering()
        rendering.block(self.block, data, {"$": dict(data)})
        return "".join(rendering.pieces), STEPS_MAX - rendering.steps_left


@functools.lru_cache(maxsize=_CACHED_MAX)
def compile_template(text: str) -> GoTemplate:
    """Misconfigured names the construct that is not understood, and its line."""
    if len(text) > TEMPLATE_CHARS_MAX:
        raise Misconfigured(f"it has more than {TEMPLATE_CHARS_MAX >> 10} Ki characters")
    return GoTemplate(_Parser(take_apart(text)).whole())


class _Parser:
    """From texts and actions to blocks: what stands between `if` or `range` and its `end`."""

    def __init__(self, parts: Iterator[str | Action]) -> None:
        self._parts = parts
        self._depth = 0
        self._line = 1
        self._known: list[str] = ["$"]  # Variables that exist here.

    def whole(self) -> TemplateBlock:
        block, ended = self._block()
        if ended is not None:
            raise refuse(ended.line, f"{{{{{ended.words[0].text}}}}} belongs to no if or range")
        return block

    def _block(self) -> tuple[TemplateBlock, Action | None]:
        """Up to an `else` or `end`, which is returned too, or to the end of the template."""
        block: list[str | Expression | Set | If | RangeAction] = []
        known = len(self._known)
        for part in self._parts:
            if isinstance(part, str):
                block.extend([part] if part else [])
                continue
            self._line = part.line
            match part.words:
                case (Word("word", "else" | "end"), *_):
                    del self._known[known:]
                    return tuple(block), part
                case (Word("word", "if"), *condition):
                    block.append(self._nested(self._if, condition))
                case (Word("word", "range"), *items):
                    block.append(self._nested(self._range, items))
                case (Word("variable", name), Word("mark", ":="), *value):
                    block.append(Set(name, self._pipeline(value)))
                    self._known.append(name)
                case words:
                    block.append(self._pipeline(words))
        return tuple(block), None

    def _nested(
        self, parse: Callable[[Sequence[Word]], If | RangeAction], words: Sequence[Word]
    ) -> If | RangeAction:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise refuse(self._line, f"it is nested more than {DEPTH_MAX} deep")
        node = parse(words)
        self._depth -= 1
        return node

    def _if(self, words: Sequence[Word]) -> If:
        line, condition = self._line, self._pipeline(words)
        then, ended = self._block()
        match self._words_of(ended, "if", line):
            case (Word("word", "end"),):
                return If(condition, then, ())
            case (Word("word", "else"), Word("word", "if"), *other):
                # The `end` of the inner one is that of the outer one, too.
                inner = self._nested(self._if, other)
                return If(condition, then, (inner,))
            case (Word("word", "else"),):
                return If(condition, then, self._last_block("if", line))
        raise refuse(self._line, "else is followed by something other than if")

    def _range(self, words: Sequence[Word]) -> RangeAction:
        line, names = self._line, list[str]()
        match words:
            case (Word("variable", item), Word("mark", ":="), *rest):
                names, words = [item], rest
            case (
                Word("variable", key),
                Word("mark", ","),
                Word("variable", item),
                Word("mark", ":="),
                *rest,
            ):
                names, words = [key, item], rest
        items = self._pipeline(words)
        self._known.extend(names)
        body, ended = self._block()
        del self._known[len(self._known) - len(names) :]
        match self._words_of(ended, "range", line):
            case (Word("word", "end"),):
                return RangeAction(items, tuple(names), body, (), line)
            case (Word("word", "else"),):
                return RangeAction(items, tuple(names), body, self._last_block("range", line), line)
        raise refuse(self._line, "else of a range is followed by something")

    def _last_block(self, what: str, line: int) -> TemplateBlock:
        block, ended = self._block()
        match self._words_of(ended, what, line):
            case (Word("word", "end"),):
                return block
        raise refuse(self._line, f"a second else for the {what} of line {line}")

    def _words_of(self, ended: Action | None, what: str, line: int) -> tuple[Word, ...]:
        if ended is None:
            raise refuse(line, f"{{{{{what}}}}} has no {{{{end}}}}")
        return ended.words

    def _pipeline(self, words: Sequence[Word]) -> Expression:
        return _Expressions(words, self._line, self._known).whole()


class _Expressions:
    """One action's words as an expression: commands, joined by |, whose operands may stand in parentheses."""

    def __init__(self, words: Sequence[Word], line: int, known: Sequence[str]) -> None:
        self._words = words
        self._line = line
        self._known = known
        self._at = 0

    def whole(self) -> Expression:
        expression = self._pipeline(0)
        if self._at < len(self._words):
            raise refuse(self._line, f"{self._words[self._at].text!r} is not understood here")
        return expression

    def _pipeline(self, depth: int) -> Expression:
        if depth > DEPTH_MAX:
            raise refuse(self._line, f"it is nested more than {DEPTH_MAX} deep")
        value = self._command(depth, ())
        while self._take("|"):
            value = self._command(depth, (value,))
        return value

    def _command(self, depth: int, piped: tuple[Expression, ...]) -> Expression:
        word = self._words[self._at] if self._at < len(self._words) else None
        if word is not None and word.kind == "word" and word.text not in _CONSTANTS:
            self._at += 1
            return self._call(word.text, (*self._operands(depth), *piped))
        operands = list(self._operands(depth))
        if len(operands) != 1 or piped:
            raise refuse(self._line, "a value, or a function and its values, is expected")
        return operands[0]

    def _call(self, function: str, arguments: tuple[Expression, ...]) -> Expression:
        if function not in _FUNCTIONS:
            known = ", ".join(sorted(_FUNCTIONS))
            raise refuse(self._line, f"{function} is not supported; if, else, end, range, {known} are")
        least, most = _FUNCTIONS[function]
        if not least <= len(arguments) <= most:
            raise refuse(self._line, f"{function} cannot have {len(arguments)} values")
        return TemplateCall(function, arguments)

    def _operands(self, depth: int) -> Iterator[Expression]:
        while self._at < len(self._words):
            word = self._words[self._at]
            if word.kind == "mark" and word.text != "(":
                return
            self._at += 1
            if word.kind == "mark":
                yield self._pipeline(depth + 1)
                if not self._take(")"):
                    raise refuse(self._line, "a parenthesis is not closed")
            else:
                yield self._operand(word)

    def _operand(self, word: Word) -> Expression:
        match word:
            case Word("text", text):
                return Constant(text)
            case Word("number", digits):
                return Constant(float(digits) if "." in digits else int(digits))
            case Word("field", path):
                return Path(".", tuple(path.split(".")[1:]) if path != "." else (), self._line)
            case Word("variable", path):
                root, *fields = path.split(".")
                if root not in self._known:
                    raise refuse(self._line, f"{root} was never set")
                return Path(root, tuple(fields), self._line)
            case Word("word", text) if text in _CONSTANTS:
                return Constant(_CONSTANTS[text])
        raise refuse(self._line, f"{word.text} cannot stand for a value")

    def _take(self, mark: str) -> bool:
        taken = self._at < len(self._words) and self._words[self._at] == Word("mark", mark)
        self._at += taken
        return taken


_CONSTANTS: Final[Mapping[str, JsonValue]] = {"true": True, "false": False, "nil": None}
_MANY: Final = 100
_FUNCTIONS: Final = {  # How few and how many values each takes.
    "eq": (2, _MANY),
    "ne": (2, 2),
    "and": (1, _MANY),
    "or": (1, _MANY),
    "not": (1, 1),
    "toJson": (1, 1),
    "json": (1, 1),  # Ollama's name of it.
    "len": (1, 1),
    "slice": (1, 3),
    "index": (2, _MANY),
    "lt": (2, 2),
    "le": (2, 2),
    "gt": (2, 2),
    "ge": (2, 2),
}
_ORDER: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


@dataclass(slots=True)
class _Rendering:
    """One rendering, and what it may still cost."""

    pieces: list[str] = field(default_factory=list)
    steps_left: int = STEPS_MAX
    chars_left: int = OUTPUT_CHARS_MAX

    def block(self, block: TemplateBlock, dot: object, variables: Mapping[str, object]) -> None:
        variables = dict(variables)
        for node in block:
            self._step()
            match node:
                case str():
                    self._write(node)
                case Set(name, value):
                    variables[name] = self._value(value, dot, variables)
                case If(condition, then, otherwise):
                    self.block(then if self._value(condition, dot, variables) else otherwise, dot, variables)
                case RangeAction():
                    self._range(node, dot, variables)
                case Constant() | Path() | TemplateCall():
                    self._write(_shown(self._value(node, dot, variables)))

    def _range(self, node: RangeAction, dot: object, variables: Mapping[str, object]) -> None:
        found = self._value(node.items, dot, variables)
        match found:
            case Mapping():
                items = sorted(found.items())
            case list() | tuple():
                items = list(enumerate(found))
            case None:
                items = []
            case _:
                raise refuse(node.line, "range needs a list or a map")
        for key, item in items:
            self._step()
            named = dict(zip(node.variables[::-1], (item, key), strict=False))
            self.block(node.body, item, {**variables, **named})
        if not items:
            self.block(node.otherwise, dot, variables)

    def _value(self, node: Expression, dot: object, variables: Mapping[str, object]) -> object:
        self._step()
        match node:
            case Constant(value):
                return value
            case Path(root, fields, line):
                found = dot if root == "." else variables[root]
                for name in fields:
                    found = _field(found, name, line)
                return found
            case TemplateCall(function, arguments):
                return self._call(function, arguments, dot, variables)

    def _call(
        self, function: str, arguments: tuple[Expression, ...], dot: object, variables: Mapping[str, object]
    ) -> object:
        if function in ("and", "or"):  # The first that decides; the rest is not looked at.
            value: object = None
            for argument in arguments:
                value = self._value(argument, dot, variables)
                if bool(value) is (function == "or"):
                    break
            return value
        return _result(function, [self._value(argument, dot, variables) for argument in arguments])

    def _step(self) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise Misconfigured(f"it takes more than {STEPS_MAX} steps")

    def _write(self, text: str) -> None:
        self.chars_left -= len(text)
        if self.chars_left < 0:
            raise Misconfigured(f"it makes more than {OUTPUT_CHARS_MAX >> 20} Mi characters")
        self.pieces.append(text)


def _result(function: str, values: Sequence[object]) -> object:
    first, *others = values
    match function:
        case "eq":
            return any(first == other for other in others)
        case "ne":
            return first != others[0]
        case "not":
            return not first
        case "toJson" | "json":
            return _json(first)
        case "index":
            return functools.reduce(_item, others, first)
        case "len":
            return 0 if first is None else len(_sized(first))
        case "slice":
            begin, end = (*(int(_number(other)) for other in others), None, None)[:2]
            return _sized(first)[begin:end]
    return _ORDER[function](_number(first), _number(others[0]))


def _field(value: object, name: str, line: int) -> object:
    """Fields of functions are written `.Name` in templates and `name` in JSON."""
    if not isinstance(value, Mapping):
        raise refuse(line, f".{name} is asked of what has no fields")
    for spelling in (name, name.lower()):
        if spelling in value:
            return value[spelling]
    raise refuse(line, f".{name} is not there; there are {', '.join(f'.{key}' for key in sorted(value))}")


def _sized(value: object) -> str | Sequence[object]:
    if isinstance(value, Mapping):
        return list(value)
    if not isinstance(value, str | list | tuple):
        raise Misconfigured("only texts, lists and maps have a length and parts")
    return value


def _item(value: object, place: object) -> object:
    """Of a list by number, of a map by key, where nothing stands for what is missing."""
    if isinstance(value, Mapping):
        return value.get(place)
    found, number = _sized(value), int(_number(place))
    if not 0 <= number < len(found):
        raise Misconfigured(f"index {number} is beyond the {len(found)} that there are")
    return found[number]


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise Misconfigured("a number is needed to compare, or to take a part by")
    return value


def _shown(value: object) -> str:
    match value:
        case str():
            return value
        case None:
            return ""
    return _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
