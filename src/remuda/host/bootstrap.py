"""Served to a machine that joins: installs the frontend's Remuda there and runs it.

One file, standard library only: it arrives through `python3 -c` on a machine that has nothing else. All of it
parses on Python 3.6, so that an old Python answers with a sentence and not with a traceback.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import NoReturn

WHEEL_URL = "@WHEEL_URL@"
WHEEL_SHA256 = "@WHEEL_SHA256@"
TOKEN_VARIABLE = "REMUDA_REGISTRATION_TOKEN"

if sys.version_info < (3, 11):  # noqa: UP036 - this file meets Pythons that the package never does.
    words, token_setting = sys.argv[1:], ""
    if "--token" in words[:-1]:
        where = words.index("--token")
        token_setting = f"{TOKEN_VARIABLE}={words[where + 1]} "
        words = words[:where] + words[where + 2 :]
    sys.exit(
        f"remuda: this needs Python 3.11 or newer, and this is {sys.version.split()[0]}.\n"
        "Install a newer one, or install uv, which brings its own, and run:\n"
        f"  {token_setting}uvx --from {WHEEL_URL} {' '.join(words)}"
    )

sys.excepthook = sys.__excepthook__  # The line that fetched this file had one for its own failures.
PROGRAM = "remuda"
LAUNCHER_MARK = "# Written by Remuda's join line."
INVITE_PREFIX = "rmi_"
DOWNLOAD_TIMEOUT_S = 60
TOKEN_TIMEOUT_S = 10
SHOWN_LINES_MAX = 8  # Of what a failed installer said.
PYTHON = f"python3.{sys.version_info[1]}"


def main() -> None:
    command = sys.argv[1:]
    if not command:
        stop("what to run is missing: end the line with, for example, 'remuda join http://HOST:8080'")
    hide_token(command)
    environment = data_folder() / "runtime" / f"{WHEEL_SHA256[:16]}-{PYTHON}"
    environment.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{environment}.lock", "w") as lock:
        fcntl.flock(
            lock, fcntl.LOCK_EX
        )  # Two joins at once on one machine: the second waits, then finds it made.
        if not is_ready(environment):
            ca = take_option(command, "--ca")[1]
            check_token(command, ca)
            prepare(environment, ca)
    if command[0] == PROGRAM:
        install_launcher(environment / "bin" / PROGRAM)
    program = str(environment / "bin" / command[0])
    os.execv(program, [program, *command[1:]])


def hide_token(command: list[str]) -> None:
    """Start again with the token in the environment: any user may read a process's arguments."""
    command_without, token = take_option(command, "--token")
    if token is None:
        return
    interpreter_arguments = sys.orig_argv[1 : len(sys.orig_argv) - len(command)]
    restart = [sys.executable, *interpreter_arguments, *command_without]
    os.execve(sys.executable, restart, dict(os.environ, **{TOKEN_VARIABLE: token}))


def check_token(command: list[str], ca: str | None) -> None:
    """Stop for a token that the frontend refuses, before anything is downloaded. Whatever else goes wrong is
    left to the program itself. An invite is valid for one name, which only the program knows."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if command[:2] != [PROGRAM, "join"] or token in ("", "-") or token.startswith(INVITE_PREFIX):
        return
    named = [word for word in command if word.startswith(("http://", "https://"))]
    frontend = named[0].rstrip("/") if named else WHEEL_URL.rpartition("/join/")[0]
    context = ssl.create_default_context(cafile=ca) if frontend.startswith("https:") else None
    try:
        headers = {"Authorization": f"Bearer {token}"}
        question = urllib.request.Request(f"{frontend}/api/node/token", headers=headers)
        urllib.request.urlopen(question, timeout=TOKEN_TIMEOUT_S, context=context).close()
    except urllib.error.HTTPError as refusal:
        if refusal.code == 401:
            stop(
                f"{frontend} refuses this registration token; copy the whole line again"
                " ('remuda join-line' shows it on the frontend's machine). Nothing was installed"
            )
    except (OSError, ValueError):
        return


def take_option(arguments: list[str], flag: str) -> tuple[list[str], str | None]:
    """The arguments without `flag VALUE` or `flag=VALUE`, and the value."""
    for index, argument in enumerate(arguments):
        if argument == flag and index + 1 < len(arguments):
            return arguments[:index] + arguments[index + 2 :], arguments[index + 1]
        if argument.startswith(flag + "="):
            return arguments[:index] + arguments[index + 1 :], argument[len(flag) + 1 :]
    return arguments, None


def data_folder() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "remuda"


def is_ready(environment: Path) -> bool:
    # The second question: has the Python it was made from been removed since?
    return (environment / "ready").exists() and (environment / "bin" / "python").exists()


def prepare(environment: Path, ca: str | None) -> None:
    """Make the environment and install the wheel into it. Marked ready last: a half-made one is made anew."""
    say(f"preparing {environment}, once")
    shutil.rmtree(environment, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder) / WHEEL_URL.rpartition("/")[2]
        wheel.write_bytes(download(WHEEL_URL, ca))
        say("installing Remuda and what it needs; this can take a minute")
        fill(environment, wheel)
    (environment / "ready").touch()


def install_launcher(program: Path) -> None:
    """Make `remuda` a command of this user. Says what it did once; another program of that name stays."""
    folder = launcher_folder()
    launcher = folder / PROGRAM
    content = f'#!/bin/sh\n{LAUNCHER_MARK}\nexec "{program}" "$@"\n'
    try:
        present = launcher.read_text() if launcher.exists() else ""
        if present == content:
            return
        if present and LAUNCHER_MARK not in present:
            say(f"{launcher} is not from a join line and stays as it is; this one is {program}")
            return
        folder.mkdir(parents=True, exist_ok=True)
        launcher.write_text(content)
        launcher.chmod(0o755)
    except (OSError, ValueError) as error:
        say(f"the command {PROGRAM} could not be put at {launcher}: {error}; it is {program}")
        return
    say(f"the command {PROGRAM} is at {launcher}")
    if str(folder) not in search_path():
        say(f'{folder} is not on the PATH; add it with: export PATH="{folder}:$PATH"')


def launcher_folder() -> Path:
    """A folder for a user's own commands, one that is on the PATH if there is any."""
    own = Path.home() / ".local" / "bin"
    everybodys = Path("/usr/local/bin")
    use_everybodys = os.geteuid() == 0 and str(own) not in search_path() and str(everybodys) in search_path()
    return everybodys if use_everybodys else own


def search_path() -> list[str]:
    return os.environ.get("PATH", "").split(os.pathsep)


def download(url: str, ca: str | None) -> bytes:
    try:
        context = ssl.create_default_context(cafile=ca) if url.startswith("https:") else None
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_S, context=context) as reply:
            content: bytes = reply.read()
    except ssl.SSLCertVerificationError as error:
        stop(f"{url} could not be downloaded: {untrusted(error)}")
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            stop(f"{url} could not be downloaded: {untrusted(reason)}")
        stop(f"{url} could not be downloaded: {reason}")
    if hashlib.sha256(content).hexdigest() != WHEEL_SHA256:
        stop(
            f"{url} is not what this script was made for: was the frontend just upgraded? run the line again"
        )
    return content


def untrusted(error: ssl.SSLCertVerificationError) -> str:
    return f"its certificate is not trusted here ({error.verify_message}); name its authority with --ca FILE"


def fill(environment: Path, wheel: Path) -> None:
    """Use what the machine has: uv, else venv with pip, else the system's pip, else apt to get venv."""
    python = str(environment / "bin" / "python")
    if works("uv", "--version"):
        run("uv", "venv", "--quiet", "--no-project", "--python", sys.executable, str(environment))
        install_packages("uv", "pip", "install", "--quiet", "--python", python, str(wheel))
        return
    install = (
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--root-user-action",
        "ignore",
        str(wheel),
    )
    with_pip = importlib.util.find_spec("ensurepip") is not None
    if not with_pip and not works(sys.executable, "-m", "pip", "--version"):
        install_venv_package()
        with_pip = True
    if with_pip:
        run(sys.executable, "-m", "venv", str(environment))
        install_packages(python, "-m", "pip", *install)
    else:
        run(sys.executable, "-m", "venv", "--without-pip", str(environment))
        install_packages(sys.executable, "-m", "pip", "--python", python, *install)


def install_venv_package() -> None:
    package = f"{PYTHON}-venv"
    as_root = () if os.geteuid() == 0 else ("sudo", "-n")
    if not works("apt-get", "--version") or not works(*as_root, "true"):
        stop(
            "this Python can neither make environments nor install packages; please install uv"
            f" (or, on Debian and Ubuntu, run 'apt install {package}' as root) and run the line again"
        )
    say(f"installing {package}")
    run(*as_root, "apt-get", "update", "-qq")
    run(*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", package)


def install_packages(*command: str) -> None:
    quiet = subprocess.DEVNULL
    done = subprocess.run(command, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE)
    if done.returncode == 0:
        return
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    for line in lines[-SHOWN_LINES_MAX:]:
        print(f"  {line}", file=sys.stderr)
    stop(
        "the packages that Remuda needs could not be installed, for the reason above. They come from a"
        " package index: if this machine cannot reach the usual one, name a mirror (UV_DEFAULT_INDEX for"
        " uv, PIP_INDEX_URL for pip) or a proxy (HTTPS_PROXY), and run the line again"
    )


def works(*command: str) -> bool:
    quiet = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        return subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet).returncode == 0
    return False


def run(*command: str) -> None:
    # Only standard error is shown: what these programs say when all goes well is long and of no use here.
    if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode != 0:
        stop(f"'{' '.join(command)}' failed, for the reason above")


def say(text: str) -> None:
    print(f"remuda: {text}", file=sys.stderr, flush=True)


def stop(text: str) -> NoReturn:
    sys.exit(f"remuda: {text}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        stop("stopped")
    except OSError as problem:  # A home that cannot be written, a full disk.
        stop(f"{problem.filename or 'this machine'}: {problem.strerror or problem}")
