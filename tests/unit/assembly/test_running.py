"""What a process holds is not for other programs of its user to read."""

import subprocess
import sys

import pytest

# Both are children of one program: a user without rights may not be able to start this interpreter.
PROGRAM = """
import ctypes, os, signal, sys
from remuda.assembly.running import keep_private

def no_longer_root():
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # As a program has it that was just started.

def seen_by_another(private):
    ready, set_ready = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        no_longer_root()
        if private:
            keep_private()
        os.write(set_ready, b".")
        signal.pause()
    os.read(ready, 1)
    reader = os.fork()
    if reader == 0:
        no_longer_root()
        try:
            open(f"/proc/{keeper}/environ", "rb").read()
        except PermissionError:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1])
    os.kill(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)
    return code == 0

print(seen_by_another(False), seen_by_another(True))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_a_private_process_shows_its_environment_to_nobody_else() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    assert done.stdout == "True False\n"
