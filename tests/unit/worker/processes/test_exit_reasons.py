"""What a person is told about a process that ended."""

import pytest

from remuda.worker.processes.exit_reasons import Ended, Useless, describe_end, likely_cause


def test_the_story_has_what_happened_the_cause_and_the_last_lines() -> None:
    story = describe_end(Ended(-9), ["loading", "still loading"], was_ready=False)
    assert story == (
        "it was killed by SIGKILL before it became ready: by the kernel when memory ran out, or by another"
        " program (see the kernel's log); its last lines:\n  loading\n  still loading"
    )


@pytest.mark.parametrize(
    ("oom", "cause"),
    [
        (True, "it was killed by SIGKILL: out of memory: the kernel's OOM killer was at work"),
        (False, "it was killed by SIGKILL: by another program, as the kernel has counted no out-of-memory"),
    ],
)
def test_a_kill_for_lack_of_memory_is_told_only_where_the_kernel_counted_one(oom: bool, cause: str) -> None:
    assert describe_end(Ended(-9), [], was_ready=True, oom=oom).startswith(cause)


def test_a_process_that_lives_but_does_not_serve_is_told_without_an_exit_code() -> None:
    assert describe_end(Useless("did not become ready"), [], was_ready=False) == "it did not become ready"


def test_a_crash_after_readiness_does_not_speak_of_the_start() -> None:
    assert describe_end(Ended(3), [], was_ready=True) == "it ended with exit code 3"


@pytest.mark.parametrize(
    ("code", "line", "cause"),
    [
        (
            127,
            "./server: error while loading shared libraries: libcudart.so.12: cannot",
            "libcudart.so.12",
        ),
        (126, "run.sh: 3: ./server: Exec format error", "another processor architecture"),
        (
            1,
            "bash: ./server: cannot execute binary file: Exec format error",
            "another processor architecture",
        ),
        (1, "ggml_cuda: CUDA_ERROR_OUT_OF_MEMORY while allocating", "out of memory"),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", "out of memory"),
        (1, "ModuleNotFoundError: No module named 'torch'", "No module named 'torch'"),
        (1, "libc.so.6: version `GLIBC_2.38' not found (required by ./server)", "GLIBC_2.38"),
        (1, "CUDA driver version is insufficient for CUDA runtime version", "driver is older"),
        (1, "OSError: [Errno 98] Address already in use", "took its port"),
        (1, "cannot listen on 127.0.0.1:50051: port 50051 is in use", "took its port"),
        (-4, "", "instructions that this processor lacks"),
        (-9, "", "when memory ran out, or by another program"),
        (-11, "", "crashed"),
        (127, "", "missing"),
    ],
)
def test_usual_causes_are_recognised(code: int, line: str, cause: str) -> None:
    assert cause in likely_cause(code, [line])


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("SIGKILL", "the engine was ended by SIGKILL (by the kernel when memory ran out, or by another"),
        ("SIGABRT", "the engine was ended by SIGABRT (the program itself crashed"),
        ("exit code 3", "the engine was ended by exit code 3"),
        (
            "its watchdog: one step took more than 10 s",
            "the engine was ended by its watchdog: one step took more than 10 s",
        ),
    ],
)
def test_a_backend_that_ends_with_its_engine_is_told_as_such(reason: str, cause: str) -> None:
    line = f"03:12:37 ERROR remuda.backends.serving stopping reason={f'the engine was ended by {reason}'!r}"
    story = describe_end(
        Ended(1), ["loaded", line, "03:12:37 INFO remuda.backends.serving stopped"], was_ready=True
    )
    assert story.startswith(f"it ended with exit code 1: {cause}")


def test_an_unknown_cause_is_not_guessed() -> None:
    assert likely_cause(1, ["something odd"]) == ""
