"""Who belongs to a process we started: by mark, session and parent, and who never does."""

import os

from remuda.host.descendants import Identity, Mark, Seen, family

OURS = Mark("folder", "boot", "one")
FIRST = 1_000_000  # Above every pid of this machine's own that matters here.


def seen(
    pid: int, parent: int = 1, session: int = 0, mark: Mark | None = None, started: str = "then"
) -> Seen:
    return Seen(Identity(FIRST + pid, started), FIRST + parent, session, FIRST + session, False, mark)


def found(*everyone: Seen, known: tuple[Identity, ...] = ()) -> list[int]:
    return [one.pid - FIRST for one in family(everyone, known, OURS.__eq__)]


def test_a_mark_is_read_back_from_an_environment() -> None:
    assert Mark.among({"PATH": "x", **OURS.environ()}) == OURS


def test_an_environment_without_a_mark_has_none() -> None:
    assert Mark.among({"PATH": "x"}) is None


def test_the_marked_belong_and_others_do_not() -> None:
    other = Mark("folder", "boot", "two")
    assert found(seen(10, session=10, mark=OURS), seen(11, session=11, mark=other), seen(12)) == [10]


def test_descendants_belong_however_deep_and_in_whatever_order() -> None:
    child, grandchild = seen(11, parent=10, session=11), seen(12, parent=11, session=12)
    assert found(grandchild, child, seen(10, session=10, mark=OURS)) == [12, 11, 10]


def test_everyone_in_a_session_belongs_when_one_does() -> None:
    assert found(seen(11, session=10, mark=OURS), seen(12, session=10), seen(13, session=13)) == [11, 12]


def test_a_session_outlives_its_known_leader() -> None:
    assert found(seen(11, session=10), known=(Identity(FIRST + 10, "then"),)) == [11]


def test_a_pid_in_use_again_is_somebody_else() -> None:
    again = seen(10, session=10, started="later")
    assert found(again, seen(11, parent=10, session=10), known=(Identity(FIRST + 10, "then"),)) == []


def test_this_process_and_its_session_never_belong() -> None:
    me = Seen(Identity(os.getpid(), "then"), 1, os.getpgid(0), os.getsid(0), False, OURS)
    forked = Seen(Identity(FIRST, "then"), os.getpid(), os.getpgid(0), os.getsid(0), False, OURS)
    beside = Seen(Identity(FIRST + 1, "then"), 1, os.getpgid(0), os.getsid(0), False, None)
    assert [one.pid for one in family([me, forked, beside], (), OURS.__eq__)] == [FIRST]
