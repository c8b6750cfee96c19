"""A grammar that held an engine is not given to the next one."""

from datetime import timedelta

import pytest

from remuda.core.errors import Invalid
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc.held_grammars import KEPT_MAX, KEPT_S, HeldGrammars
from remuda.upstreams.http2.failures import CallFailed, GrpcStatus
from tests.support.clocks import HandClock

GRAMMAR = pb.PredictOptions(Grammar="root ::= s", Prompt="a")
SCHEMA = pb.PredictOptions(Metadata={"response_format": "{}"})
KEY = b"remuda-engine-ended"
ALONE = CallFailed(GrpcStatus.INVALID_ARGUMENT, "in whatever words", {KEY: b"this-call"})
AMONG = CallFailed(GrpcStatus.ABORTED, "in whatever words", {KEY: b"one-of-several"})


def refused(held: HeldGrammars, options: pb.PredictOptions = GRAMMAR) -> bool:
    try:
        held.check(options)
    except Invalid as error:
        return "held an engine" in error.message
    return False


def test_the_grammar_that_ended_an_engine_is_refused_for_a_while() -> None:
    clock = HandClock()
    held = HeldGrammars(clock)
    held.failed(GRAMMAR, ALONE)

    assert refused(held)
    assert refused(held, pb.PredictOptions(Grammar="root ::= s", Prompt="another"))
    assert not refused(held, pb.PredictOptions(Grammar="root ::= s t"))
    assert not refused(held, SCHEMA)
    clock.advance(timedelta(seconds=KEPT_S))
    assert not refused(held)


@pytest.mark.parametrize(
    "text",
    [
        "root ::= s\n",
        "\n\nroot  ::=\ts ",
        "# a comment\nroot ::= s # more",
        "root::=other",
        "root ::= s\nunused ::= more\nmore ::= unused",
        "unused ::= s\nroot ::= t",
    ],
)
def test_a_grammar_is_known_again_however_it_is_written(text: str) -> None:
    held = HeldGrammars(HandClock())
    held.failed(GRAMMAR, ALONE)

    assert refused(held, pb.PredictOptions(Grammar=text))


@pytest.mark.parametrize("text", ["root ::= root", 'root ::= "s"', "root ::= s s", "root ::= [s]"])
def test_other_grammars_are_not_taken_for_it(text: str) -> None:
    held = HeldGrammars(HandClock())
    held.failed(GRAMMAR, ALONE)

    assert not refused(held, pb.PredictOptions(Grammar=text))


def test_the_order_of_rules_makes_no_difference() -> None:
    held = HeldGrammars(HandClock())
    held.failed(pb.PredictOptions(Grammar='root ::= a b\na ::= "x"\nb ::= a'), ALONE)

    assert refused(held, pb.PredictOptions(Grammar='y ::= x\nx ::= "x"\nroot ::= x y'))
    assert not refused(held, pb.PredictOptions(Grammar='y ::= x\nx ::= "x"\nroot ::= y x'))


def test_blanks_in_quotes_count_and_those_in_json_do_not() -> None:
    held = HeldGrammars(HandClock())
    held.failed(pb.PredictOptions(Grammar='root ::= "a b"'), ALONE)
    held.failed(SCHEMA, ALONE)

    assert not refused(held, pb.PredictOptions(Grammar='root ::= "a  b"'))
    assert refused(held, pb.PredictOptions(Metadata={"response_format": " { }\n"}))


def test_one_of_several_is_refused_the_second_time_unless_it_was_answered_in_between() -> None:
    held = HeldGrammars(HandClock())
    for options in (GRAMMAR, SCHEMA):
        held.failed(options, AMONG)
    assert not refused(held)
    held.answered(SCHEMA)
    for options in (GRAMMAR, SCHEMA):
        held.failed(options, AMONG)

    assert (refused(held), refused(held, SCHEMA)) == (True, False)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (GrpcStatus.INVALID_ARGUMENT, "failed to parse grammar: the engine was ended"),
        (
            GrpcStatus.FAILED_PRECONDITION,
            "model not loaded: the engine was ended, because one step took long",
        ),
        (GrpcStatus.UNAVAILABLE, "it is gone"),
    ],
)
def test_other_failures_are_not_held_against_a_grammar(code: GrpcStatus, details: str) -> None:
    held = HeldGrammars(HandClock())
    held.failed(GRAMMAR, CallFailed(code, details))
    held.failed(GRAMMAR, CallFailed(code, details))

    assert not refused(held)


def test_so_many_are_kept() -> None:
    held = HeldGrammars(HandClock())
    for number in range(KEPT_MAX + 1):
        options = pb.PredictOptions(Grammar=f"root ::= [{number}]")
        held.failed(options, ALONE)

    assert not refused(held, pb.PredictOptions(Grammar="root ::= [0]"))
    assert refused(held, pb.PredictOptions(Grammar="root ::= [1]"))
