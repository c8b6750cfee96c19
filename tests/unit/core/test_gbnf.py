import pytest

from remuda.core.errors import Invalid
from remuda.core.gbnf import check_grammar
from remuda.core.slices import at_once, slice_count
from remuda.models.grammar import JSON_GRAMMAR, grammar_of_schema

JSON_SAMPLE = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws # a list
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


def levels(count: int, body: str, last: str) -> str:
    """Each rule names the next one."""
    rules = [f"r{n} ::= {body.replace('next', f'r{n + 1}')}" for n in range(count)]
    return "\n".join(["root ::= r0", *rules, f"r{count} ::= {last}", ""])


DOUBLED = levels(20, 'next next | ""', '"" | "a"')


@pytest.mark.parametrize(
    "grammar",
    [
        JSON_GRAMMAR,
        JSON_SAMPLE,
        'root ::= item ("," ws item)*\nitem ::= [a-z]+\nws ::= [ \\t]*',
        'root ::= ws "x" ws\nws ::= ([ \\t\\n] ws)?',
        'root ::= "a" root | ""',
        'root ::= ("a"? "b"? "c"?){1,20} .',
        levels(3, 'next next | ""', '"" | "a"'),
        'root ::= "a"{' + "0" * 6000 + "1}",
    ],
)
def test_ordinary_grammars_pass(grammar: str) -> None:
    at_once(check_grammar(grammar))


@pytest.mark.parametrize("more", [False, True])
def test_an_object_of_many_optional_properties_passes(more: bool) -> None:
    names = [f"p{n}" for n in range(3900)]
    assert at_once(
        grammar_of_schema(
            {"properties": {name: {"type": "string"} for name in names}, "additionalProperties": more}
        )
    )


@pytest.mark.parametrize(
    "grammar",
    [
        DOUBLED,
        levels(20, "( next next )?", '"a"?'),
        levels(20, "next{0,2}", '"a"?'),
        levels(20, 'next "a" | next "b"', '"c"'),
        levels(20, 'next [] [^] next | ""', '"" | "a"'),
        'root ::= ("a"?){0,200} ("a"?){0,2000}',
        'root ::= "\n" r0 "\n"\n' + DOUBLED.replace("| ", '| "\n" | '),
        DOUBLED.replace("\n", " # and so on\r"),
        "root ::= " + '"" ' * 150_000,
    ],
)
def test_what_expands_too_far_is_refused(grammar: str) -> None:
    with pytest.raises(Invalid, match="expands too far: the rule r"):
        at_once(check_grammar(grammar))


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= root "a" | "b"',
        'root ::= ("a"?)*',
        'root ::= ws+ "a"\nws ::= [ \\t]*',
        'root ::= blank root | "x"\nblank ::= ws\nws ::= " "?',
    ],
)
def test_what_expands_without_end_is_refused(grammar: str) -> None:
    with pytest.raises(Invalid, match="expands without end: the rule root"):
        at_once(check_grammar(grammar))


@pytest.mark.parametrize(
    "grammar",
    [
        's ::= [a-z ] s "a" | [a-z ] s "b"',
        'root ::= x\nx ::= "(" x ")" | "." | "(" x "]"',
        'root ::= x\nx ::= y x y | y x "b" y | "."\ny ::= [a-z]',
    ],
)
def test_ways_that_double_with_each_level_are_refused(grammar: str) -> None:
    with pytest.raises(Invalid, match=r"too ambiguous: two alternatives of the rule [sx] begin alike"):
        at_once(check_grammar(grammar))


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= a\na ::= b | c | "x"\nb ::= [a-z ] a "1"\nc ::= [a-z ] a "2"',
        'root ::= a\na ::= [a-z] b "1" | [a-z] a "2" | "x"\nb ::= [a-z] a "1" | [a-z] b "2" | "x"',
        'a ::= ([a-z ] a | [a-z ] a "1") "q" | "x"',
        'a ::= [a-m] a "1" | [k-z] a "2" | "x"',
        'a ::= [^0-9] a "1" | "\\x61" a "2" | "x"',
        'a ::= ("ab" | "cd") a "1" | "c" "d" a "2" | "x"',
        'a ::= ws [a-z] a "1" | [a-z] a "2" | "x"\nws ::= " "*',
        'a ::= t "1" | t "2"\nt ::= [a-z] a | "x"',
        'a ::= [a-z] a "1" | [a-z] a "1" | "x"',
        "a ::= b | c | d\nb ::= [a-z]{2} a [0-9]\nc ::= [a-z] e\ne ::= [a-z] a [^0-9]\nd ::= [.]",
    ],
)
def test_ways_that_double_through_other_rules_are_refused(grammar: str) -> None:
    with pytest.raises(Invalid, match=r"too ambiguous: two alternatives of the rule [ab] begin alike"):
        at_once(check_grammar(grammar))


def test_a_long_search_for_ambiguity_ends_and_gives_others_a_turn() -> None:
    ways = " | ".join(f'[a-z] [a-z]* "{n}" a "{n}"' for n in range(300))
    _, slices = slice_count(check_grammar(f'root ::= a\na ::= {ways} | "x"'))

    assert slices > 20


@pytest.mark.parametrize(
    "grammar",
    [
        'x ::= "(" x ")" | "[" x "]" | "."',
        'x ::= "(" x (")" | "]") | "."',
        "x ::= [a-z] x | [a-z]",
        'x ::= "a" x "b" | "a" x',
        'f ::= name "(" f ")" | name "[" f "]" | name\nname ::= [a-z]+',
        'a ::= b | c | "x"\nb ::= [a-m] a "1"\nc ::= [n-z] a "2"',
        'a ::= b | c | "x"\nb ::= [^a-z] a "1"\nc ::= [a-z] a "2"',
        'v ::= "[" l "]" | "{" m "}" | [0-9]+\nl ::= v | v "," l\nm ::= p | p "," m\np ::= [a-z]+ ":" v',
        's ::= word s | word\nword ::= [a-z]+ " "',
        'x ::= "<" [a-z]+ ">" x* "</" [a-z]+ ">" | "<" [a-z]+ "/>" | [a-z ]+',
        'e ::= t | t "+" e\nt ::= [0-9]+ | "(" e ")"',
    ],
)
def test_what_is_only_a_little_ambiguous_passes(grammar: str) -> None:
    at_once(check_grammar(grammar))


def test_nothing_hides_behind_the_end_of_a_text() -> None:
    with pytest.raises(Invalid, match="NUL"):
        at_once(check_grammar('root ::= "a" \0 "b"'))


@pytest.mark.parametrize("grammar", ["", "a", ")", "root ::= )))", "|", "(", "{3}", "?", "root ::= (a ::= b"])
def test_what_makes_no_sense_is_left_to_the_engine(grammar: str) -> None:
    at_once(check_grammar(grammar))


@pytest.mark.parametrize("grammar", ["::=", "* ::= |", '"a" ::= "b"', 'a* ::= "b"'])
def test_a_rule_must_have_a_name(grammar: str) -> None:
    with pytest.raises(Invalid, match="::= without the name of a rule"):
        at_once(check_grammar(grammar))


def test_a_large_grammar_is_checked_in_slices() -> None:
    _, slices = slice_count(check_grammar("\n".join(f'r{n} ::= "a" ( "b" | r{n} )?' for n in range(3000))))

    assert slices > 20
