"""Runs tests in several processes that are copies of the one that collected them: `pytest --processes N`.

Collecting thousands of tests takes ten seconds of CPU, and is done once. Tests are handed out in groups, in
the order of the collection: one process runs a group from its first test to its last. If a process dies, the
rest of its group has failed, and another process takes its place.
"""

import os
import signal
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, NoReturn

import psutil
import pytest
from _pytest._io import TerminalWriter
from _pytest.capture import CaptureManager

PROCESS: Final = "TEST_PROCESS"
"""In the environment of a copy: which one it is, counted from 0; and in the next, how many there are."""
PROCESSES: Final = "TEST_PROCESSES"

_ENDS_WITHIN_S: Final = 60.0  # Time to tear down the fixtures of a session.


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processes", default="1", metavar="N", help="run tests in N processes; auto: 3 per core"
    )
    parser.addoption("--costs", action="store_true", help="tell what each module costs")


def process_count(config: pytest.Config) -> int:
    """More than there are cores: most of the time a test waits, for processes and for time to pass."""
    option: str = config.getoption("--processes")
    return 3 * (os.cpu_count() or 1) if option == "auto" else int(option)


def run_forked(session: pytest.Session, group_of: Callable[[pytest.Item], str]) -> bool | None:
    """For `pytest_runtestloop`. None: there is to be one process, and pytest's own loop does it."""
    count = process_count(session.config)
    if count <= 1 or session.testsfailed or session.config.option.collectonly or not session.items:
        return None
    by_group = groupby(range(len(session.items)), key=lambda index: group_of(session.items[index]))
    groups = deque([*indices] for _, indices in by_group)
    _Run(session, groups).run(min(count, len(groups)))
    return True


@dataclass(slots=True)
class _Copy:
    pid: int
    number: int
    pending: deque[int] = field(default_factory=deque)  # Tests that it was given, and has not run yet.


class _Run:
    """In the process that collected: hands out groups and passes reports on to pytest."""

    def __init__(self, session: pytest.Session, groups: deque[list[int]]) -> None:
        self._session = session
        self._groups = groups
        self._copies: dict[Connection, _Copy] = {}
        self._costs: defaultdict[str, Cost] = defaultdict(Cost)

    def run(self, count: int) -> None:
        self._session.config.stash[_COUNT] = count
        _temporary_folder(self._session.config)  # The copies have theirs in it.
        try:
            for number in range(count):
                self._fork(number)
            while self._copies:
                for connection in wait([*self._copies]):
                    assert isinstance(connection, Connection)
                    self._hear(connection, self._copies[connection])
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
        finally:
            self._end_all()
            if self._session.config.option.costs:
                print("", *cost_table(self._costs), sep="\n")

    def _fork(self, number: int) -> None:
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            for connection in (ours, *self._copies):
                connection.close()
            _run_copy(self._session, theirs, number)
        theirs.close()
        self._copies[ours] = _Copy(pid, number)

    def _hear(self, connection: Connection, copy: _Copy) -> None:
        try:
            message = connection.recv()
        except (EOFError, ConnectionResetError):
            self._ended(connection, copy)
            return
        match message:
            case "give":
                group = self._groups.popleft() if self._groups else []
                copy.pending.extend(group)
                connection.send(group)
            case Cost() as cost:
                module = self._session.items[copy.pending[0]].nodeid.partition("::")[0]
                self._costs[module] += cost
            case list() as reports:
                self._report(reports)
                copy.pending.popleft()

    def _report(self, reports: list[dict[str, Any]]) -> None:
        hook = self._session.config.hook
        for report in reports:
            read = hook.pytest_report_from_serializable(config=self._session.config, data=report)
            hook.pytest_runtest_logreport(report=read)

    def _ended(self, connection: Connection, copy: _Copy) -> None:
        connection.close()
        del self._copies[connection]
        _, status = os.waitpid(copy.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        for place, index in enumerate(copy.pending):
            why = f"its process ended with {code}" if place == 0 else "not run: its process has ended"
            self._fail(self._session.items[index], why)
        if self._groups:
            self._fork(copy.number)

    def _fail(self, item: pytest.Item, why: str) -> None:
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", f"{item.nodeid}: {why}", "call")
        self._session.config.hook.pytest_runtest_logreport(report=report)

    def _end_all(self) -> None:
        """As by Ctrl-C, so that what fixtures have started ends, too."""
        for copy in self._copies.values():
            os.kill(copy.pid, signal.SIGINT)
        for connection, copy in self._copies.items():
            if not _drained(connection):
                os.kill(copy.pid, signal.SIGKILL)
            connection.close()
            os.waitpid(copy.pid, 0)
        self._copies.clear()


def _drained(connection: Connection) -> bool:
    """Whether the other end was closed in time."""
    while wait([connection], _ENDS_WITHIN_S):
        try:
            connection.recv()
        except (EOFError, ConnectionResetError):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_s: float = 0.0
    wall_s: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.cpu_s + other.cpu_s, self.wall_s + other.wall_s)

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.cpu_s - other.cpu_s, self.wall_s - other.wall_s)


def cost_so_far() -> Cost:
    """Of this process and of its children: of those that it has waited for, and of those that run."""
    times = [psutil.Process().cpu_times()]
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times.append(process.cpu_times())
    spent_s = sum(one.user + one.system + one.children_user + one.children_system for one in times)
    return Cost(spent_s, time.monotonic())


def cost_table(costs: Mapping[str, Cost]) -> Iterator[str]:
    """What costs most CPU comes first. Orphans that have ended are not in it."""
    total = sum(costs.values(), Cost())
    yield f"{'CPU s':>8}{'wall s':>9}  module"
    for module, cost in sorted(costs.items(), key=lambda one: -one[1].cpu_s):
        yield f"{cost.cpu_s:8.1f}{cost.wall_s:9.1f}  {module}"
    yield f"{total.cpu_s:8.1f}{total.wall_s:9.1f}  all of them"


_COUNT: Final = pytest.StashKey[int]()


class _Reporter:
    """In a copy: keeps what pytest would show of a test, for the process that collected. That is sent when
    the test is over: a message for each of its three reports would cost as much as most tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reports: list[dict[str, Any]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._reports.append(hook.pytest_report_to_serializable(config=self._config, report=report))

    def taken(self) -> list[dict[str, Any]]:
        taken, self._reports = self._reports, []
        return taken


def _run_copy(session: pytest.Session, connection: Connection, number: int) -> NoReturn:
    code = 1
    try:
        reporter = _Reporter(session.config)
        _set_apart(session.config, reporter, number)
        _run_tests(session, connection, reporter)
        code = 0
    except KeyboardInterrupt:
        session._setupstate.teardown_exact(None)
    finally:
        connection.close()
        os._exit(code)


def _set_apart(config: pytest.Config, reporter: _Reporter, number: int) -> None:
    """What a copy must not share with the others: its output, its temporary folder, its number."""
    os.environ |= {PROCESS: str(number), PROCESSES: str(config.stash[_COUNT])}
    for name in ("terminalreporter", "lfplugin", "nfplugin", "stepwiseplugin"):
        config.pluginmanager.unregister(name=name)
    config.pluginmanager.register(reporter, "forked-reporter")
    # pytest-timeout writes the stacks of a test that hangs to it, and then ends the process.
    config.get_terminal_writer = lambda: TerminalWriter(sys.__stderr__)  # type: ignore[method-assign]
    capture = config.pluginmanager.getplugin("capturemanager")
    assert isinstance(capture, CaptureManager)
    capture.stop_global_capturing()
    capture.start_global_capturing()
    folder = _temporary_folder(config) / f"process-{number}"
    folder.mkdir(exist_ok=True)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]


def _temporary_folder(config: pytest.Config) -> Path:
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return factory.getbasetemp()


def _run_tests(session: pytest.Session, connection: Connection, reporter: _Reporter) -> None:
    items = _given(session, connection)
    item = next(items, None)
    told: bool = session.config.option.costs
    before = cost_so_far() if told else Cost()
    while item is not None:
        following = next(items, None)  # What it needs of what is set up now stays.
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if told and (following is None or following.path != item.path):
            after = cost_so_far()
            connection.send(after - before)
            before = after
        connection.send(reporter.taken())
        item = following


def _given(session: pytest.Session, connection: Connection) -> Iterator[pytest.Item]:
    while True:
        connection.send("give")
        indices = connection.recv()
        if not indices:
            return
        for index in indices:
            yield session.items[index]
