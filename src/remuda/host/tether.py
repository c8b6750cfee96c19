"""Runs in a new child first: ties its life to its parent's, then becomes the program it was asked for.

Started by `process_family.tied`, as a plain file by a bare interpreter, so it imports the standard library
only. Linux only.
"""

import ctypes
import os
import sys

# By number: the module `signal` is a third of what this program costs, and every backend waits for it.
_SIGKILL, _SIGPIPE, _SIGXFSZ = 9, 13, 25
_SIG_DFL = None
_PR_SET_PDEATHSIG = 1
_CANNOT_RUN = 127


def main() -> None:
    (tie, _, niceness), program = sys.argv[1].partition(":"), sys.argv[2:]
    parent = int(tie)
    libc = ctypes.CDLL(None)
    if libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0) != 0:
        sys.exit("the kernel refused to tie this process to its parent")
    if os.getppid() != parent:  # It died before the tie was made, so no signal will come.
        os.kill(os.getpid(), _SIGKILL)
    os.nice(int(niceness or 0))
    for descriptor in map(int, os.listdir("/dev/fd")):  # uvloop leaves more open than the three it should.
        if descriptor > 2:
            os.closerange(descriptor, descriptor + 1)  # Without minding that one is closed already.
    # The interpreter ignores these, and what is ignored stays ignored in the program.
    for ignored in (_SIGPIPE, _SIGXFSZ):
        libc.signal(ignored, _SIG_DFL)
    try:
        os.execv(program[0], program)
    except OSError as error:
        print(f"cannot run {program[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(_CANNOT_RUN)


if __name__ == "__main__":
    main()
