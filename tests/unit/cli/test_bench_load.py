"""What the times of chats come to."""

from hypothesis import given
from hypothesis import strategies as st

from remuda.cli.bench_load import Round, TimedChat, measured, prompt_speed
from remuda.core.errors import PeerFailed


def chat(began_s: float, first_s: float, ended_s: float, tokens: int = 10, prompt: int = 100) -> TimedChat:
    return TimedChat(began_s, began_s + first_s, began_s + ended_s, prompt, tokens)


def failed(began_s: float, ended_s: float) -> TimedChat:
    return TimedChat(began_s, ended_s=began_s + ended_s, error=PeerFailed("gone"))


def test_tokens_of_all_streams_count_over_the_time_from_the_first_beginning_to_the_last_end() -> None:
    rounds = [Round([chat(0, 0.1, 2), chat(0.5, 0.3, 4.5)]), Round([chat(10, 0.2, 5), chat(10, 0.4, 5)])]
    speed = measured("attic", 2, rounds, 0)
    assert (speed.node, speed.streams, speed.requests, speed.failed) == ("attic", 2, 4, 0)
    assert speed.tokens_per_s == 40 / (5 + 5)
    assert (round(speed.first_token_ms), round(speed.first_token_p95_ms)) == (200, 400)
    assert (speed.prompt_tokens, speed.completion_tokens) == (100, 10)


def test_failed_chats_count_as_failed_and_for_nothing_else() -> None:
    speed = measured("attic", 2, [Round([chat(0, 0.5, 2, tokens=8), failed(0, 1)])], 0)
    assert (speed.requests, speed.failed, speed.completion_tokens) == (2, 1, 8)
    assert (speed.tokens_per_s, speed.first_token_ms) == (4, 500)


def test_nothing_that_came_to_an_end_has_no_speed() -> None:
    speed = measured("attic", 1, [Round([failed(0, 1)])], 0)
    assert (speed.tokens_per_s, speed.first_token_ms, speed.first_token_p95_ms) == (0, 0, 0)
    assert prompt_speed([Round([failed(0, 1)])]) == 0


def test_prompts_are_read_as_fast_as_the_median_of_them() -> None:
    rounds = [Round([chat(0, seconds, 9)]) for seconds in (0.1, 0.5, 2.0)]
    assert round(prompt_speed(rounds)) == 200


times = st.floats(min_value=0.001, max_value=100)


@given(st.lists(st.lists(st.tuples(times, times), min_size=1, max_size=5), min_size=1, max_size=4))
def test_more_tokens_in_the_same_time_are_never_slower(
    firsts_and_rests: list[list[tuple[float, float]]],
) -> None:
    def speed(tokens: int) -> float:
        rounds = [
            Round([chat(0, first, first + rest, tokens) for first, rest in one]) for one in firsts_and_rests
        ]
        found = measured("attic", 1, rounds, 0)
        assert found.first_token_ms <= found.first_token_p95_ms
        return found.tokens_per_s

    assert speed(1) < speed(2)
