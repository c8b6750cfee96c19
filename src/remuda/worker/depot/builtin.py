"""Backends that ship with Remuda: nothing is fetched, a run file starts this installation's own module."""

import shlex
from pathlib import Path
from typing import Final

from remuda.core.errors import NotFound
from remuda.gallery.model import BUILTIN
from remuda.worker.depot.layout import RUN_FILE

_MODULES: Final = {"llama-cpp": "remuda.backends.llama_cpp", "echo": "remuda.backends.echo"}

_SCRIPT: Final = """\
#!/bin/sh
# Written by Remuda, and written again when it is upgraded or moved: changes are lost.
python={python}
if [ ! -x "$python" ]; then
    echo "$python is gone, and with it the Remuda that this backend is part of." \\
        "Start the worker again, or run: remuda backends pull {backend}" >&2
    exit 127
fi
exec "$python" -P -m {module} "$@"
"""


def is_builtin(uri: str) -> bool:
    return uri.startswith(BUILTIN)


def run_script(uri: str, backend: str, python: Path) -> str:
    """What the run file of `backend` has to be while `python` is the interpreter that has Remuda.

    NotFound when this Remuda has no such built-in.
    """
    module = _MODULES.get(uri.removeprefix(BUILTIN))
    if module is None:
        known = ", ".join(f"{BUILTIN}{name}" for name in _MODULES)
        raise NotFound(f"{uri} does not ship with this Remuda", hint=f"known: {known}")
    return _SCRIPT.format(
        python=shlex.quote(str(python.absolute())), backend=shlex.quote(backend), module=module
    )


def write_run_file(folder: Path, script: str) -> None:
    path = folder / RUN_FILE
    path.write_text(script)
    path.chmod(0o755)
