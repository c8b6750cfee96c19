"""A worker reduced to its processes, for tests that kill it: a machine, a reaper and one backend.

Arguments: owner, boot, folder. The backend says its pid and those of three that it started: one in its
session, another there without an environment, and one that left as daemons do.
"""

import os
import sys
from pathlib import Path

import anyio

from remuda.core.clock import SystemClock
from remuda.core.ids import BootId
from remuda.host.process_family import Reaper, adopt_orphans, reap_orphans
from remuda.wire.process_keys import ProcessKey
from remuda.worker.processes.logs import ProcessLogs
from remuda.worker.processes.machine import LocalMachine
from remuda.worker.processes.model import ProcessCommand

BACKEND = """
import os, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
pids = [os.getpid(), subprocess.Popen(SLEEPER).pid, subprocess.Popen(SLEEPER, env={}).pid]
source, sink = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.write(sink, str(os.getpid()).encode())
    time.sleep(600)
os.wait()
print("pids", *pids, os.read(source, 20).decode(), flush=True)
time.sleep(600)
"""


async def main(owner: str, boot: BootId, folder: Path) -> None:
    adopt_orphans()
    logs = ProcessLogs(folder, SystemClock())
    reaper = Reaper(owner, boot)
    async with anyio.create_task_group() as tasks:
        await tasks.start(reaper.run)
        tasks.start_soon(reap_orphans)
        machine = LocalMachine(owner, boot, logs, reaper)
        command = ProcessCommand((sys.executable, "-c", BACKEND), folder, {"PATH": os.environ["PATH"]})
        with logs.follow("model") as lines:
            await machine.start(ProcessKey("model", 0), "instance", command)
            async for line in lines:
                print(line.text, flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], BootId(sys.argv[2]), Path(sys.argv[3]), backend_options={"use_uvloop": True})
