"""What a machine that joins is served: the bootstrap script, the line a person types there, and the running
installation as a wheel, so that a frontend can hand itself on.

The wheel is made alike from a checkout and from an installed wheel, and needs no build backend.
"""

import base64
import hashlib
import io
import re
import shlex
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path

import remuda
from remuda.core.errors import Invalid
from remuda.host import bootstrap

_FETCH_S = 30
_NO_TOKEN = "--insecure-no-token"
_UNQUOTABLE = re.compile(r"""["'$`\\\s]""")


def script(wheel_url: str, wheel_sha256: str) -> str:
    """The text served at `/join.py`: installs the wheel found at that address, if it has that digest."""
    text = Path(bootstrap.__file__).read_text(encoding="utf-8")
    # Written as literals, quotes and all: the address may hold what a request's Host header said.
    for placeholder, value in (("@WHEEL_URL@", wheel_url), ("@WHEEL_SHA256@", wheel_sha256)):
        text = text.replace(f'"{placeholder}"', repr(value))
    return text


def bare_machine_line(frontend_url: str, *command: str, ca: str = "") -> str:
    """A shell line that runs `command` with this frontend's Remuda on a machine that has only Python.

    `ca` names the file, on that machine, with which an https frontend's certificate is checked.
    """
    address = f"{frontend_url.rstrip('/')}/join.py"
    for part in (address, ca):
        if _UNQUOTABLE.search(part):
            raise Invalid(
                f"{part!r} cannot stand in a command line", hint="quotes and spaces are the trouble"
            )
    module, trust = "", ""
    if ca:
        module, trust = "ssl,", f",context=ssl.create_default_context(cafile='{ca}')"
    # Without a hook of its own, a frontend that cannot be reached would answer with a traceback.
    doubt = "is it running, and that port open"
    if address.startswith("https:"):
        doubt += ", and its certificate trusted here"
    hook = f"lambda t,e,b:print('remuda: {address} cannot be fetched:',e,'({doubt}?)',file=sys.stderr)"
    fetch = (
        f"import {module}sys,urllib.request as r;sys.excepthook={hook};"
        f"exec(r.urlopen('{address}',timeout={_FETCH_S}{trust}).read())"
    )
    return f'python3 -c "{fetch}" {shlex.join(command)}'


def join_line(frontend_url: str, token: str, *, ca: str = "") -> str:
    """What to type on another machine so that it joins this frontend; an empty token: it wants none."""
    proof = ("--token", token) if token else (_NO_TOKEN,)
    trust = ("--ca", ca) if ca else ()
    return bare_machine_line(frontend_url, "remuda", "join", frontend_url, *proof, *trust, ca=ca)


def uvx_line(frontend_url: str, token: str, wheel_name: str) -> str:
    """The same where uv is installed, whatever Python is. The token is not an argument: uvx would show it in
    the process list for as long as the worker runs."""
    line = f"uvx --from {frontend_url}/join/{wheel_name} remuda join {frontend_url}"
    return f"REMUDA_REGISTRATION_TOKEN={shlex.quote(token)} {line}" if token else f"{line} {_NO_TOKEN}"


_EPOCH = (1980, 1, 1, 0, 0, 0)  # The earliest instant a zip file knows: the bytes tell no time.
_WHEEL = b"Wheel-Version: 1.0\nGenerator: remuda\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def own_wheel() -> tuple[str, bytes]:
    """File name and bytes of a wheel of this installation; the same files give the same bytes."""
    installed = distribution("remuda")
    files = dict(_package_files(Path(remuda.__file__).parent))
    return pack(installed.name, installed.version, files, dict(_metadata_files(installed)))


def own_wheel_name() -> str:
    """The file name of `own_wheel`, without making it."""
    installed = distribution("remuda")
    return _file_name(installed.name, installed.version)


def pack(
    name: str, version: str, files: Mapping[str, bytes], metadata: Mapping[str, bytes]
) -> tuple[str, bytes]:
    """File name and bytes of a pure-Python wheel; `metadata` are the files of its dist-info folder."""
    dist_info = f"{name}-{version}.dist-info"
    contents = dict(files) | {f"{dist_info}/{path}": content for path, content in metadata.items()}
    contents[f"{dist_info}/WHEEL"] = _WHEEL
    record = f"{dist_info}/RECORD"
    lines = [f"{path},{_digest(content)},{len(content)}\n" for path, content in sorted(contents.items())]
    contents[record] = "".join([*lines, f"{record},,\n"]).encode()

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as wheel:
        for path, content in sorted(contents.items()):
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return _file_name(name, version), archive.getvalue()


def _file_name(name: str, version: str) -> str:
    return f"{name}-{version}-py3-none-any.whl"


def _package_files(root: Path) -> Iterator[tuple[str, bytes]]:
    for path in root.rglob("*"):
        inside = path.relative_to(root)
        left_out = any(part == "__pycache__" or part.startswith(".") for part in inside.parts)
        if path.is_file() and not left_out:
            yield f"{root.name}/{inside.as_posix()}", path.read_bytes()


def _metadata_files(installed: Distribution) -> Iterator[tuple[str, bytes]]:
    """What the wheel says about itself. The rest of dist-info is about this machine's installation only."""
    for path in installed.files or ():
        folder, *inside = path.parts
        kept = inside in (["METADATA"], ["entry_points.txt"]) or inside[:1] == ["licenses"]
        if folder.endswith(".dist-info") and kept:
            yield "/".join(inside), path.read_binary()


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"
