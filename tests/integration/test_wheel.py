"""The wheel made from the running installation is one that installers accept."""

import csv
import io
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from remuda.host.joining import own_wheel, own_wheel_name


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which uv has installed our wheel, without its dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    name, content = own_wheel()
    wheel = folder / name
    wheel.write_bytes(content)
    uv = shutil.which("uv")
    assert uv, "these tests need uv on the PATH; ./test puts it there"
    install = [uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", sys.executable]
    subprocess.run([*install, "--target", folder / "site", wheel], check=True, timeout=60)
    return folder / "site"


def test_building_twice_gives_the_same_bytes() -> None:
    assert own_wheel() == own_wheel()


def test_name_is_known_without_building() -> None:
    assert own_wheel_name() == own_wheel()[0]


def test_installed_wheel_runs_with_the_same_version(installed: Path) -> None:
    show = "import remuda; print(remuda.__version__, remuda.__file__)"
    # Isolated from this environment's own installation, with only the standard library beside the wheel.
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); {show}"
    shown = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True
    )
    assert shown.stdout.split() == [distribution("remuda").version, str(installed / "remuda" / "__init__.py")]


def test_installed_wheel_has_the_command(installed: Path) -> None:
    assert (installed / "bin" / "remuda").stat().st_mode & 0o111


def test_wheel_asks_for_the_same_dependencies(installed: Path) -> None:
    (metadata,) = installed.glob("remuda-*.dist-info/METADATA")
    assert metadata.read_text() == distribution("remuda").read_text("METADATA")


def test_wheel_holds_every_file_of_the_package_and_no_leftovers() -> None:
    archive = zipfile.ZipFile(io.BytesIO(own_wheel()[1]))
    packed = {name for name in archive.namelist() if name.startswith("remuda/")}
    package = Path(own_wheel.__code__.co_filename).parents[1]
    sources = {f"remuda/{path.relative_to(package).as_posix()}" for path in package.rglob("*.py")}
    assert sources <= packed
    assert not [name for name in packed if "__pycache__" in name]


def test_record_lists_every_file() -> None:
    archive = zipfile.ZipFile(io.BytesIO(own_wheel()[1]))
    (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
    listed = [row[0] for row in csv.reader(archive.read(record).decode().splitlines())]
    assert sorted(listed) == sorted(archive.namelist())
