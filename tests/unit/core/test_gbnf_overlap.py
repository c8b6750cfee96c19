"""Grammars whose parts stay open side by side: those at the bound, and those that hold an engine too long.

Milliseconds for a token on one core, beside the sampling of it, with SmolLM2's 49,152 tokens
(`python -m bench.grammar_steps`):

    shape                                      steps counted         ms
    "a"? 50 times                                       3725         22
    "a"? 75 times                                       8400        154
    "a"? 100 times                                     14950        551
    "a"? 200 times                                     60000   stopped after 80 s of wall time
    ("a" "b"?)? 25 times                                2450         18
    ("a" "b"?)? 50 times                                9900        306
    ("a" "b"?)? 75 times                               22350       1417
    [a-z ]* 10 times                                    2920         21
    [a-z ]* 15 times                                    6630        128
    [a-z ]* 20 times                                   11840        643
    10 equal ways, then "a"? 50 times                   3675        116
    100 equal ways, then "a"? 50 times                 15000        252
    4000 different texts                                 few        309
    object of 500 optional texts                         136         68
    object of 1400 optional texts                        136        210
    "a"{0,2000}                                          few   too little to measure
"""

import pytest
from pydantic import JsonValue

from remuda.core.errors import Invalid
from remuda.core.gbnf import check_grammar
from remuda.core.gbnf_expansion import RuleRefused
from remuda.core.slices import at_once, slice_count
from remuda.models import grammar

ARITHMETIC = r"""root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
CHESS = r"""# Specifies chess moves as a list in algebraic notation
root   ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move   ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn   ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""
LIST = r"""root ::= item+
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"""
C = r"""root ::= (declaration)*
declaration ::= dataType identifier "(" parameter? ")" "{" statement* "}"
dataType  ::= "int" ws | "float" ws | "char" ws
identifier ::= [a-zA-Z_] [a-zA-Z_0-9]*
parameter ::= dataType identifier
statement ::=
    ( dataType identifier ws "=" ws expression ";" ) |
    ( identifier ws "=" ws expression ";" ) |
    ( identifier ws "(" argList? ")" ";" ) |
    ( "return" ws expression ";" ) |
    ( "while" "(" condition ")" "{" statement* "}" ) |
    ( "for" "(" forInit ";" ws condition ";" ws forUpdate ")" "{" statement* "}" ) |
    ( "if" "(" condition ")" "{" statement* "}" ("else" "{" statement* "}")? ) |
    ( singleLineComment ) |
    ( multiLineComment )
forInit ::= dataType identifier ws "=" ws expression | identifier ws "=" ws expression
forUpdate ::= identifier ws "=" ws expression
condition ::= expression relationOperator expression
relationOperator ::= ("<=" | "<" | "==" | "!=" | ">=" | ">")
expression ::= term (("+" | "-") term)*
term ::= factor(("*" | "/") factor)*
factor ::= identifier | number | unaryTerm | funcCall | parenExpression
unaryTerm ::= "-" factor
funcCall ::= identifier "(" argList? ")"
parenExpression ::= "(" ws expression ws ")"
argList ::= expression ("," ws expression)*
number ::= [0-9]+
singleLineComment ::= "//" [^\n]* "\n"
multiLineComment ::= "/*" ( [^*] | ("*" [^/]) )* "*/"
ws ::= ([ \t\n]+)
"""


def in_a_row(part: str, count: int) -> str:
    return "root ::= " + f"{part} " * count + '"b"'


def engine_style_object(count: int) -> str:
    """As llama.cpp itself writes an object of optional properties."""
    rests = [
        f'k{n}-rest ::= ( "," space k{n + 1}-kv )? {f"k{n + 1}-rest" if n + 2 < count else ""}'
        for n in range(count - 1)
    ]
    pairs = [f'k{n}-kv ::= "\\"k{n}\\"" space ":" space number' for n in range(count)]
    firsts = " | ".join(f"k{n}-kv {f'k{n}-rest' if n + 1 < count else ''}" for n in range(count))
    number = 'number ::= ("-"? ("0" | [1-9] [0-9]{0,15})) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,16})? space'
    space = 'space ::= | " " | "\\n"{1,2} [ \\t]{0,20}'
    return "\n".join([f'root ::= "{{" space ( {firsts} )? "}}" space', *rests, *pairs, number, space])


ORDINARY = {
    "arithmetic": ARITHMETIC,
    "c": C,
    "chess": CHESS,
    "list": LIST,
    "object": engine_style_object(300),
    "words": 'root ::= word ("," " "? word){0,200} "."?\nword ::= [a-z]+',
    "sentence": 'root ::= "the "? [a-z]+ " "? [a-z]* " "? [a-z]* [.!?]?',
    "date": 'root ::= [0-9]{4} "-"? [0-9]{2} "-"? [0-9]{2} ("T" [0-9:]+)? "Z"?',
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_grammars_pass(name: str) -> None:
    at_once(check_grammar(ORDINARY[name]))


AT_BOUND = [
    ('"a"?', 75),
    ('("ab")?', 60),
    ('("a" "b"?)?', 40),
    ("[a-z ]*", 15),
    ("[^x]?", 15),
    ("[0-9]*", 20),
    ("[a-z]{0,9}", 15),
]


@pytest.mark.parametrize(("part", "count"), AT_BOUND)
def test_so_many_open_parts_pass_and_more_are_refused(part: str, count: int) -> None:
    at_once(check_grammar(in_a_row(part, count)))

    with pytest.raises(RuleRefused, match="leaves too much open: in the rule root") as refused:
        at_once(check_grammar(in_a_row(part, 2 * count)))
    assert "make most of them required" in refused.value.hint


OPEN = {
    "optional parts, many": in_a_row('"a"?', 2000),
    "behind a text": 'root ::= "x" ( ' + '"a"? ' * 2000 + ")",
    "in another rule": 'root ::= "x" a "b"\na ::= ' + '"a"? ' * 500,
    "by name": "root ::= " + "a " * 500 + '"b"\na ::= "abcdef"?',
    "texts with a name for each": "root ::= "
    + " ".join(f"a{n}" for n in range(500))
    + "".join(f'\na{n} ::= "abcdef"?' for n in range(500)),
    "one in the other": 'root ::= x "b"\nx ::= y y y y y y y y\ny ::= z z z z z z z z\nz ::= "a"* "a"* "a"*',
    "ways that are the same": "root ::= (" + '"a" | ' * 1000 + '"a") ' + '"a"? ' * 70,
    "brackets within each other": 'root ::= r0\nr0 ::= "(" r1 r1 ")" | ""\n'
    + "\n".join(f'r{n} ::= "(" r{n + 1} r{n + 1} ")" | ""' for n in range(1, 60))
    + '\nr60 ::= "a"',
}


@pytest.mark.parametrize("name", OPEN)
def test_what_leaves_too_much_open_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="leaves too much open"):
        at_once(check_grammar(OPEN[name]))


def test_looking_for_it_gives_others_a_turn() -> None:
    _, slices = slice_count(check_grammar("root ::= " + "[a]" * 100_000))

    assert slices > 300


def test_a_schema_is_refused_where_it_makes_such_a_grammar() -> None:
    ways: list[JsonValue] = [
        {"type": "object", "properties": {f"p{n + more}": {"type": "number"} for more in range(10)}}
        for n in range(350)
    ]

    with pytest.raises(Invalid, match="the schema at #/properties/inner: it makes a grammar that takes"):
        at_once(grammar.grammar_of_schema({"type": "object", "properties": {"inner": {"anyOf": ways}}}))


def test_objects_may_have_the_same_optional_properties() -> None:
    same: dict[str, JsonValue] = {f"p{n}": {"type": "number"} for n in range(200)}
    schema: JsonValue = {
        "properties": {
            "a": {"properties": same},
            "b": {"properties": same, "additionalProperties": True},
            "c": {"properties": {**same, "more": True}},
        }
    }

    assert at_once(grammar.grammar_of_schema(schema)).startswith("root ::= ")
