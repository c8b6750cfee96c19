"""Logs of backend processes: bounded whatever a process writes, and readable after it has ended."""

import os
import tracemalloc
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from remuda.core import limits
from remuda.core.clock import SystemClock
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.log_store import OutputLine, OutputStream, RotatedFile, folder_name, key_of
from remuda.worker.processes.logs import ProcessLogs
from tests.support.clocks import START, HandClock

KEY = ProcessKey("llama", 0)
CHUNK = 64 << 10


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def logs(tmp_path: Path, clock: HandClock) -> ProcessLogs:
    return ProcessLogs(tmp_path, clock)


def texts(lines: list[OutputLine]) -> list[str]:
    return [line.text for line in lines]


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# Lines


def test_lines_bear_their_stream_and_time(logs: ProcessLogs, clock: HandClock) -> None:
    sink = logs.open(KEY, "i1")
    sink.stdout(b"out\n")
    clock.passed_s = 5
    sink.stderr(b"err\n")
    expected = [
        OutputLine(START, OutputStream.STDOUT, "out"),
        OutputLine(START + timedelta(seconds=5), OutputStream.STDERR, "err"),
    ]
    assert logs.lines("llama#0") == expected
    assert logs.lines("llama") == expected


def test_a_line_that_arrives_in_pieces_is_one_line(logs: ProcessLogs) -> None:
    sink = logs.open(KEY, "i1")
    for piece in (b"lo", b"ad", b"ing\r\nnext", b" one\n"):
        sink.stderr(piece)
        sink.stdout(b"between\n")
    assert [line.text for line in logs.lines("llama#0") if line.stream is OutputStream.STDERR] == [
        "loading",
        "next one",
    ]


def test_an_unfinished_line_is_in_the_tail_and_kept_when_the_process_ends(logs: ProcessLogs) -> None:
    sink = logs.open(KEY, "i1")
    sink.stderr(b"one\nfatal: no ")
    assert sink.tail(OutputStream.STDERR, 5) == ["one", "fatal: no "]
    assert texts(logs.lines("llama#0")) == ["one"]
    sink.close()
    assert texts(logs.lines("llama#0")) == ["one", "fatal: no "]
    assert sink.tail(OutputStream.STDERR, 1) == ["fatal: no "]


def test_what_is_not_utf8_costs_no_line(logs: ProcessLogs) -> None:
    logs.open(KEY, "i1").stdout(b"caf\xe9\n\xff\xfe\nfine \xe2\x82\xac\n")
    assert texts(logs.lines("llama")) == ["caf\ufffd", "\ufffd\ufffd", "fine €"]


def test_a_progress_bar_is_what_a_terminal_would_show(logs: ProcessLogs) -> None:
    logs.open(KEY, "i1").stderr(b"\r 10%\r 50%\r100%\ndone\r\n\n")
    assert texts(logs.lines("llama")) == ["100%", "done", ""]


def test_an_endless_line_is_shown_as_several(logs: ProcessLogs) -> None:
    sink = logs.open(KEY, "i1")
    for _ in range(10):
        sink.stdout(b"x" * 7_000)
    sink.close()
    shown = texts(logs.lines("llama"))
    assert "".join(shown) == "x" * 70_000
    assert max(map(len, shown)) <= limits.LOG_LINE_BYTES_MAX


@given(st.lists(st.binary(max_size=60), max_size=30))
def test_however_output_is_cut_the_lines_are_the_same(pieces: list[bytes]) -> None:
    logs = ProcessLogs(Path(os.devnull) / "nowhere", HandClock())
    sink = logs.open(KEY, "i1")
    whole = b"".join(piece.replace(b"\r", b"") for piece in pieces)
    for piece in pieces:
        sink.stdout(piece.replace(b"\r", b""))
    sink.close()
    expected = whole.removesuffix(b"\n").split(b"\n") if whole else []
    assert texts(logs.lines("llama")) == [line.decode(errors="replace") for line in expected]


def test_the_newest_lines_are_kept(logs: ProcessLogs) -> None:
    sink = logs.open(KEY, "i1")
    count = limits.LOG_LINES_KEPT + 500
    for number in range(0, count, 3):
        sink.stdout(b"".join(b"%d\n" % (number + offset) for offset in range(3)))
    shown = texts(logs.lines("llama"))
    assert shown == [str(number) for number in range(count - limits.LOG_LINES_KEPT, count)]


# Keys and instances


def test_replicas_of_a_model_are_merged_by_time(logs: ProcessLogs, clock: HandClock) -> None:
    sinks = [logs.open(ProcessKey("org/model:q4", index), "i") for index in range(2)]
    for second in range(4):
        clock.passed_s = second
        sinks[second % 2].stdout(b"%d\n" % second)
    assert texts(logs.lines("org/model:q4")) == ["0", "1", "2", "3"]
    assert texts(logs.lines("org/model:q4#1")) == ["1", "3"]


def test_a_name_that_only_begins_alike_is_another_model(logs: ProcessLogs) -> None:
    logs.open(ProcessKey("llama-2", 0), "i").stdout(b"other\n")
    assert logs.lines("llama") == []
    assert logs.lines("llama-2#1") == []


def test_models_are_listed_without_replicas(logs: ProcessLogs) -> None:
    for key in (ProcessKey("b", 0), ProcessKey("b", 1), ProcessKey("a/x", 0), ProcessKey("c#d", 0)):
        logs.open(key, "i")
    assert logs.models() == ["a/x", "b", "c"]


def test_a_tail_is_of_one_process(logs: ProcessLogs) -> None:
    first = logs.open(KEY, "i1")
    first.stderr(b"first\n")
    first.close()
    second = logs.open(KEY, "i2")
    assert second.tail(OutputStream.STDERR, 20) == []
    second.stderr(b"second\n")
    assert second.tail(OutputStream.STDERR, 20) == ["second"]
    assert texts(logs.lines("llama")) == ["first", "second"]


def test_a_flood_on_stdout_does_not_drive_out_the_last_words_on_stderr(logs: ProcessLogs) -> None:
    sink = logs.open(KEY, "i1")
    sink.stderr(b"out of memory\n")
    for _ in range(100):
        sink.stdout(b"token\n" * 1000)
    assert sink.tail(OutputStream.STDERR, 20) == ["out of memory"]


def test_a_closed_sink_takes_nothing_more(logs: ProcessLogs) -> None:
    sink = logs.open(KEY, "i1")
    sink.close()
    sink.stdout(b"late\n")
    sink.close()
    assert logs.lines("llama") == []


# Files


def test_streams_have_files_of_their_own(logs: ProcessLogs, tmp_path: Path) -> None:
    sink = logs.open(ProcessKey("a/b", 3), "i1")
    sink.stdout(b"out\xff")
    sink.stderr(b"err\n")
    folder = tmp_path / "a%2Fb%233"
    assert (folder / "stdout.log").read_bytes() == b"out\xff"
    assert (folder / "stderr.log").read_bytes() == b"err\n"
    assert folder.stat().st_mode & 0o077 == 0


@given(st.text(min_size=1), st.integers(min_value=0, max_value=99))
def test_every_key_has_a_folder_of_its_own(model_id: str, index: int) -> None:
    key = ProcessKey(model_id, index)
    name = folder_name(key)
    assert len(name.encode()) <= 255
    assert not name.startswith(".")
    assert "/" not in name
    assert "~" in name or key_of(Path(name)) == key


@pytest.mark.parametrize("model_id", ["m" * 5_000, "é" * 300, "../../etc", "a\nb", "\0", "~", "%2F", "C:\\x"])
def test_odd_keys_are_found_again_by_a_new_worker(tmp_path: Path, clock: HandClock, model_id: str) -> None:
    sink = ProcessLogs(tmp_path, clock).open(ProcessKey(model_id, 0), "i")
    sink.stdout(b"hello\n")
    sink.close()
    assert texts(ProcessLogs(tmp_path, HandClock()).lines(model_id)) == ["hello"]
    assert len(list(tmp_path.iterdir())) == 1


def test_long_keys_that_begin_alike_do_not_share_a_folder() -> None:
    assert folder_name(ProcessKey("m" * 300 + "a", 0)) != folder_name(ProcessKey("m" * 300 + "b", 0))


def test_a_new_worker_reads_and_continues_what_the_one_before_wrote(tmp_path: Path, clock: HandClock) -> None:
    before = ProcessLogs(tmp_path, clock).open(KEY, "i1")  # Killed: nobody closes it.
    before.stdout(b"loading\n")
    before.stderr(b"half a li")
    after = ProcessLogs(tmp_path, clock)
    assert after.models() == ["llama"]
    assert sorted(texts(after.lines("llama#0"))) == ["half a li", "loading"]
    sink = after.open(KEY, "i2")
    sink.stdout(b"again\n")
    assert texts(after.lines("llama#0"))[-1] == "again"
    assert len(after.lines("llama#0")) == 3
    assert sink.tail(OutputStream.STDOUT, 20) == ["again"]


def test_times_of_lines_read_from_files_are_marked_as_approximate(tmp_path: Path, clock: HandClock) -> None:
    ProcessLogs(tmp_path, clock).open(KEY, "i1").stdout(b"loading\n")
    after = ProcessLogs(tmp_path, clock)
    after.open(KEY, "i2").stdout(b"again\n")
    assert {line.text: line.approximate for line in after.lines("llama#0")} == {
        "loading": True,
        "again": False,
    }


def test_after_a_rotation_the_older_file_still_counts(tmp_path: Path, clock: HandClock) -> None:
    sink = ProcessLogs(tmp_path, clock).open(KEY, "i1")
    count = 100_000
    for number in range(0, count, 1000):
        sink.stdout(b"".join(b"%0100d\n" % (number + offset) for offset in range(1000)))
    assert (tmp_path / "llama%230" / "stdout.log").stat().st_size < 100 * 101 * limits.LOG_LINES_KEPT
    found = [int(text) for text in texts(ProcessLogs(tmp_path, clock).lines("llama"))]
    assert found == list(range(count - limits.LOG_LINES_KEPT, count))


def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", "no-replica", "x~y", "%zz%230", "%ff%230"):
        (tmp_path / name).mkdir()
    assert ProcessLogs(tmp_path, HandClock()).models() == []
    assert len(list(tmp_path.iterdir())) == 5


def test_logs_of_stopped_keys_go_by_number_and_age(
    tmp_path: Path, clock: HandClock, logs: ProcessLogs
) -> None:
    running = logs.open(ProcessKey("running", 0), "i")
    running.stdout(b"up\n")
    for number in range(limits.LOG_STOPPED_KEYS_MAX + 5):
        clock.passed_s += 1
        sink = logs.open(ProcessKey(f"m{number:03}", 0), "i")
        sink.stdout(b"x\n")
        sink.close()
    assert logs.models()[0] == "m005"
    assert len(list(tmp_path.iterdir())) == limits.LOG_STOPPED_KEYS_MAX + 1

    clock.passed_s += timedelta(days=limits.LOG_STOPPED_DAYS_MAX, hours=1).total_seconds()
    logs.open(KEY, "i")
    assert logs.models() == ["llama", "running"]


# Floods and broken disks


@pytest.mark.parametrize(
    "line", [b"\n", b"a line of usual length, more or less, as logs have them\n", b"x" * 1000]
)
@pytest.mark.parametrize("size", [64 << 20, pytest.param(1 << 30, marks=pytest.mark.long)])
def test_a_flood_costs_constant_memory_and_bounded_disk(tmp_path: Path, line: bytes, size: int) -> None:
    logs = ProcessLogs(tmp_path, SystemClock())
    sink = logs.open(KEY, "i1")
    chunk = (line * (CHUNK // len(line) + 1))[:CHUNK]
    with logs.follow("llama"):
        for _ in range(100):  # Past the first rotation's bounds in memory.
            sink.stderr(chunk)
        tracemalloc.start()
        for _ in range((16 << 20) // CHUNK):
            sink.stderr(chunk)
        grown, _peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for _ in range(size // CHUNK):
            sink.stderr(chunk)
    assert grown < 2 << 20
    assert disk_bytes(tmp_path) <= 2 * limits.LOG_FILE_BYTES_MAX
    assert len(sink.tail(OutputStream.STDERR, 20)) == 20 or b"\n" not in line
    assert len(logs.lines("llama")) == limits.LOG_LINES_KEPT or b"\n" not in line


def test_rotation_loses_no_byte_of_the_newest(tmp_path: Path, logs: ProcessLogs) -> None:
    sink = logs.open(KEY, "i1")
    written = bytearray()
    for number in range(200):
        data = b"%06d\n" % number * 10_000
        written += data
        sink.stdout(data)
    folder = tmp_path / "llama%230"
    kept = (folder / "stdout.log.1").read_bytes() + (folder / "stdout.log").read_bytes()
    assert len(kept) > limits.LOG_FILE_BYTES_MAX // 2
    assert written.endswith(kept)


def test_a_full_disk_is_complained_of_once(clock: HandClock) -> None:
    file = RotatedFile(Path("/dev/full"), clock, lambda: None)
    with capture_logs() as events:
        for _ in range(5):
            file.write(b"lost\n")
            clock.passed_s += limits.LOG_FILE_RETRY_S
    assert [event["event"] for event in events] == ["log_file_not_written"]


def test_a_file_that_cannot_be_written_costs_what_is_in_files_and_nothing_else(
    tmp_path: Path, clock: HandClock, logs: ProcessLogs
) -> None:
    folder = tmp_path / "llama%230"
    folder.mkdir()
    (folder / "stdout.log").symlink_to("elsewhere")  # Links are not followed.
    sink = logs.open(KEY, "i1")
    sink.stdout(b"one\n")
    sink.stdout(b"two\n")
    assert texts(logs.lines("llama")) == ["one", "two"]
    (folder / "stdout.log").unlink()
    clock.passed_s += limits.LOG_FILE_RETRY_S
    sink.stdout(b"three\n")
    assert (folder / "stdout.log").read_bytes() == b"three\n"


def test_files_removed_under_a_running_process_are_made_anew(
    tmp_path: Path, clock: HandClock, logs: ProcessLogs
) -> None:
    sink = logs.open(KEY, "i1")
    sink.stdout(b"one\n")
    for path in (tmp_path / "llama%230").iterdir():
        path.unlink()
    sink.stdout(b"x" * limits.LOG_FILE_BYTES_MAX)
    assert (tmp_path / "llama%230" / "stdout.log").stat().st_size == limits.LOG_FILE_BYTES_MAX


# Following


@pytest.mark.anyio
async def test_a_follower_gets_what_arrives_after_it_came(logs: ProcessLogs) -> None:
    sink = logs.open(KEY, "i1")
    sink.stdout(b"before\n")
    got: list[str] = []

    async def read() -> None:
        with logs.follow("llama") as lines:
            ready.set()
            async for line in lines:
                got.append(line.text)
                if line.text == "end":
                    return

    ready = anyio.Event()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await ready.wait()
            sink.stdout(b"a\nb\n")
            logs.open(ProcessKey("other", 0), "i").stdout(b"not mine\n")
            await anyio.wait_all_tasks_blocked()
            logs.open(ProcessKey("llama", 1), "i").stderr(b"replica\nend\n")
    assert got == ["a", "b", "replica", "end"]


@pytest.mark.anyio
async def test_a_follower_that_is_too_slow_is_told_what_it_missed(logs: ProcessLogs) -> None:
    sink = logs.open(KEY, "i1")
    count = limits.LOG_FOLLOW_LINES_MAX + 250
    with logs.follow("llama#0") as lines, anyio.fail_after(10):
        for number in range(count):
            sink.stdout(b"%d\n" % number)
        first = await anext(lines)
        rest = [(await anext(lines)).text for _ in range(limits.LOG_FOLLOW_LINES_MAX)]
    assert first.text == "[250 lines are omitted here: they came faster than they were read]"
    assert rest == [str(number) for number in range(250, count)]


@pytest.mark.anyio
async def test_one_huge_write_reaches_a_follower_shortened(logs: ProcessLogs) -> None:
    sink = logs.open(KEY, "i1")
    with logs.follow("llama#0") as lines, anyio.fail_after(10):
        sink.stdout(b"\n" * 5_000_000 + b"end\n")
        got = [(await anext(lines)).text for _ in range(limits.LOG_FOLLOW_LINES_MAX + 1)]
    assert got[0].startswith(f"[{5_000_001 - limits.LOG_FOLLOW_LINES_MAX} lines are omitted")
    assert got[-1] == "end"
