"""Backends that never become ready: the install fails, says why, and leaves nothing."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from remuda.host.ports import listen
from remuda.worker.processes.machine import oom_kills
from tests.integration.running.rig import HOST, QUICK, Rig, Yard, working
from tests.support.bad_backends import PORT, STDERR_LINES, Bad, write_bad_backend
from tests.support.nats_servers import PlainServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

START = timedelta(seconds=6)
SHOWN = 20  # Lines of stderr.


def bad(yard: Yard, *kinds: Bad) -> Path:
    """Installed under their own names; the folder of the last one."""
    for kind in kinds:
        run_file = write_bad_backend(yard.backend(kind), kind)
    return run_file.parent


async def test_one_that_exits_is_told_with_its_code_and_its_last_lines(rig: Rig) -> None:
    bad(rig.yard, Bad.EXITS)
    last = range(STDERR_LINES - SHOWN + 1, STDERR_LINES + 1)
    assert await rig.refused(Bad.EXITS, model_id="m") == (
        "exits could not be started for m: it ended with exit code 3 before it became ready; its last lines:"
        + "".join(f"\n  line {number}" for number in last)
    )


async def test_one_that_lacks_a_library_is_told_which(rig: Rig) -> None:
    bad(rig.yard, Bad.LACKS_LIBRARY)
    assert await rig.refused(Bad.LACKS_LIBRARY, model_id="m") == (
        "lacks-library could not be started for m: it ended with exit code 127 before it became ready: the"
        " library libfoo.so.1 is missing; install it, or choose a build for this machine's hardware; its last"
        " lines:\n  ./engine: error while loading shared libraries: libfoo.so.1: cannot open shared object"
        " file: No such file or directory"
    )


async def test_one_that_is_killed_is_told_by_whom_as_far_as_the_kernel_tells(rig: Rig) -> None:
    bad(rig.yard, Bad.KILLED)
    refused = await rig.refused(Bad.KILLED, model_id="m")
    assert refused.startswith(
        "killed could not be started for m: it was killed by SIGKILL before it became ready: by "
    )
    assert ("no out-of-memory kill" in refused) is (oom_kills() is not None)


async def test_one_with_foreign_instructions_is_told_to_need_another_build(rig: Rig) -> None:
    bad(rig.yard, Bad.ILLEGAL_INSTRUCTION)
    assert await rig.refused(Bad.ILLEGAL_INSTRUCTION, model_id="m") == (
        "illegal-instruction could not be started for m: it was killed by SIGILL before it became ready: its"
        " build uses instructions that this processor lacks; choose another build"
    )


async def test_one_of_another_architecture_is_told_so(rig: Rig) -> None:
    bad(rig.yard, Bad.WRONG_ARCHITECTURE)
    told, _, lines = (await rig.refused(Bad.WRONG_ARCHITECTURE, model_id="m")).partition("; its last lines:")
    assert told == (
        "wrong-architecture could not be started for m: it ended with exit code 126 before it became ready:"
        " the program is for another processor architecture; choose a build for this machine's"
    )
    assert "cannot execute binary file" in lines


async def test_one_whose_run_file_is_no_program_here_is_told_so(rig: Rig) -> None:
    folder = bad(rig.yard, Bad.WRONG_RUN_FILE)
    assert await rig.refused(Bad.WRONG_RUN_FILE, model_id="m") == (
        "wrong-run-file could not be started for m: it ended with exit code 127 before it became ready: the"
        " program is for another processor architecture; choose a build for this machine's; its last lines:"
        f"\n  cannot run {folder}/run.sh: Exec format error"
    )


async def test_those_that_say_nothing_useful_are_ended_when_the_time_is_over(
    yard: Yard, nats: PlainServer
) -> None:
    yard.timeouts = replace(QUICK, start=START)
    kinds = (Bad.WRONG_PORT, Bad.SILENT, Bad.NOT_OK)
    bad(yard, *kinds)
    reasons: dict[Bad, str] = {}
    async with working(yard, nats) as rig:

        async def install(kind: Bad) -> None:
            reasons[kind] = (await rig.install(kind, model_id=f"m-{kind}"))["error"]

        async with anyio.create_task_group() as tasks:
            for kind in kinds:
                tasks.start_soon(install, kind)
            await wait_until(lambda: len([row for row in rig.room.report().replicas if row.address]) == 3)
            ports = {row.backend: row.address.rpartition(":")[2] for row in rig.room.report().replicas}
        assert yard.alive() == []

    def not_ready(kind: Bad, why: str) -> str:
        return f"{kind} could not be started for m-{kind}: it did not become ready on port {ports[kind]}" + (
            f" within 6 s: {why}"
        )

    wrong = (yard.backend(Bad.WRONG_PORT) / PORT).read_text()
    nothing = f"nothing listens on port {ports[Bad.WRONG_PORT]} (it listens on {wrong} instead)"
    assert reasons == {
        Bad.WRONG_PORT: not_ready(Bad.WRONG_PORT, nothing),
        Bad.SILENT: not_ready(Bad.SILENT, f"no answer on port {ports[Bad.SILENT]} within 1 s"),
        Bad.NOT_OK: not_ready(Bad.NOT_OK, "its health call answers 'LOADING'"),
    }


async def test_ports_of_what_failed_are_free_and_rest_for_a_while(yard: Yard, nats: PlainServer) -> None:
    yard.ports_count = 2
    bad(yard, Bad.KILLED, Bad.EXITS)
    async with working(yard, nats) as rig:
        for kind in (Bad.KILLED, Bad.EXITS):
            await rig.refused(kind)
        base = int(str(rig.frontend.node("gpu-1").registrations[0]["address"]).rpartition(":")[2])
        for port in (base, base + 1):
            listen(HOST, port).close()
        reason = await rig.refused(Bad.KILLED)
        assert f"no port from {base} to {base + 1} is free for killed#0 (0 held by backends" in reason


async def test_a_failed_install_does_not_stay_in_the_report_and_can_be_repeated(rig: Rig) -> None:
    folder = bad(rig.yard, Bad.EXITS)
    await rig.refused(Bad.EXITS, model_id="m")
    await wait_until(lambda: rig.replica("m") is None)

    write_bad_backend(folder, Bad.DIES)
    assert (await rig.installed(Bad.EXITS, model_id="m"))["address"]
