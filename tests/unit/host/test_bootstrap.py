"""What the join script decides before it touches the machine."""

import ast
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from remuda.core.errors import Invalid
from remuda.host import bootstrap
from remuda.host.joining import join_line, script
from remuda.host.ports import free_port

SOURCE = Path(bootstrap.__file__).read_text()


def test_script_parses_on_an_old_python_so_that_it_can_say_so() -> None:
    assert ast.parse(SOURCE, feature_version=(3, 6))


def test_script_imports_only_the_standard_library() -> None:
    imports = [node for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_served_script_knows_its_wheel() -> None:
    text = script("http://ranch:8080/join/pony-1-py3-none-any.whl", "abc123")
    assert 'WHEEL_URL = "' not in text
    assert "WHEEL_URL = 'http://ranch:8080/join/pony-1-py3-none-any.whl'" in text
    assert "WHEEL_SHA256 = 'abc123'" in text


def test_address_cannot_smuggle_code_into_the_script() -> None:
    hostile = 'http://x"; import os; os.abort(); "\n'
    tree = ast.parse(script(hostile, ""))
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert hostile in values


@pytest.mark.parametrize("form", [["--token", "s3cret"], ["--token=s3cret"]])
def test_option_is_taken_out_of_the_arguments(form: list[str]) -> None:
    arguments = ["remuda", "join", *form, "--name", "dun"]
    assert bootstrap.take_option(arguments, "--token") == (["remuda", "join", "--name", "dun"], "s3cret")


def test_absent_option_changes_nothing() -> None:
    assert bootstrap.take_option(["remuda", "join"], "--token") == (["remuda", "join"], None)


def test_join_line_ends_in_the_join_command() -> None:
    line = join_line("http://ranch:8080", "s3cret")
    assert line.startswith('python3 -c "import sys,urllib.request as r;')
    assert "exec(r.urlopen('http://ranch:8080/join.py',timeout=30).read())" in line
    assert line.endswith('" remuda join http://ranch:8080 --token s3cret')


def test_a_frontend_that_cannot_be_reached_is_a_sentence() -> None:
    port = free_port("127.0.0.1")
    done = subprocess.run(
        ["sh", "-c", join_line(f"http://127.0.0.1:{port}", "s3cret")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"remuda: http://127.0.0.1:{port}/join.py cannot be fetched: ")
    assert "Connection refused" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_refused_token_is_told_before_anything_is_downloaded(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization", "")))
            self.send_response(401)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        command = ["-c", script(f"{url}/join/remuda-1-py3-none-any.whl", "abc"), "remuda", "join", url]
        done = subprocess.run(
            [sys.executable, *command, "--token", "wrong"],
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        server.shutdown()
    assert done.returncode == 1
    assert f"{url} refuses this registration token" in done.stderr
    assert asked == [("/api/node/token", "Bearer wrong")]


def test_an_old_python_is_told_the_line_for_uv() -> None:
    served = script("http://ranch:8080/join/remuda-1-py3-none-any.whl", "abc")
    pretend = f"import sys; sys.version_info = (3, 9, 2); exec({served!r})"
    command = [sys.executable, "-c", pretend, "remuda", "join", "http://ranch:8080", "--token", "s3cret"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].strip() == (
        "REMUDA_REGISTRATION_TOKEN=s3cret uvx --from http://ranch:8080/join/remuda-1-py3-none-any.whl "
        "remuda join http://ranch:8080"
    )


def test_join_line_checks_a_private_certificate_from_the_first_byte() -> None:
    line = join_line("https://ranch:8080", "s3cret", ca="ranch.pem")
    assert "context=ssl.create_default_context(cafile='ranch.pem')" in line
    assert line.endswith("--ca ranch.pem")


def test_join_line_refuses_an_address_that_would_break_the_shell() -> None:
    with pytest.raises(Invalid):
        join_line("http://ranch:8080/$(reboot)", "s3cret")
