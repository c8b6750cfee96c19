"""The bootstrap script as a frontend serves it, and the line a person types on the machine that joins."""

import re
import shlex
from pathlib import Path

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
