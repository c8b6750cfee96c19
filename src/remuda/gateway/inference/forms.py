"""The fields of a form, checked; errors name the field as those of a JSON body do. Pure."""

from collections.abc import Sequence
from typing import Final

from remuda.core.slices import Sliced
from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.inference.multipart import FormPart, form_parts
from remuda.inference.media_requests import FILES_MAX, InputFile

_TEXT_BYTES_MAX: Final = 256 << 10
_NAME_CHARS_MAX: Final = 512
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


def read_form(content_type: str, body: bytes) -> Sliced["FormFields"]:
    return FormFields((yield from form_parts(content_type, body)))


class FormFields:
    """Fields that are not asked for are left alone, as in JSON bodies."""

    def __init__(self, parts: Sequence[FormPart]) -> None:
        self._texts: dict[str, list[memoryview]] = {}
        self._files: dict[str, list[InputFile]] = {}
        for part in parts:
            name = part.name.removesuffix("[]")
            if part.file_name is None:
                self._texts.setdefault(name, []).append(part.content)
            else:
                self._files.setdefault(name, []).append(InputFile(part.file_name, part.content))

    def files(self, name: str, *, most: int = FILES_MAX) -> Sequence[InputFile]:
        """At least one, and none of them empty."""
        found = self._files.get(name, [])
        if not found:
            words = "must be a file, not a text" if name in self._texts else "is missing"
            raise InvalidField(f"{name} {words}", name)
        if len(found) > most:
            raise InvalidField(f"{name} has {len(found)} files, {most} are allowed", name)
        if not all(len(file.content) for file in found):
            raise InvalidField(f"{name} is an empty file", name)
        return found

    def has_file(self, name: str) -> bool:
        return name in self._files

    def texts(self, name: str) -> Sequence[str]:
        """All values of a field, empty ones left out."""
        if name in self._files:
            raise InvalidField(f"{name} must be a text, not a file", name)
        return [text for value in self._texts.get(name, ()) if (text := _text(name, value))]

    def text(self, name: str) -> str:
        """The only value; empty: there is none."""
        found = self.texts(name)
        if len(found) > 1:
            raise InvalidField(f"{name} is there {len(found)} times", name)
        return found[0] if found else ""

    def required(self, name: str) -> str:
        if not (found := self.text(name)):
            raise InvalidField(f"{name} is missing", name)
        return found

    def model(self) -> str:
        found = self.required("model")
        if len(found) > _NAME_CHARS_MAX:
            raise InvalidField(f"model must have at most {_NAME_CHARS_MAX} characters", "model")
        return found

    def choice(self, name: str, allowed: Sequence[str], default: str) -> str:
        found = self.text(name) or default
        check_choice(name, found, allowed)
        return found

    def choices(self, name: str, allowed: Sequence[str]) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(self.texts(name)))
        for one in found:
            check_choice(name, one, allowed)
        return found

    def number(self, name: str, least: float, most: float) -> float | None:
        found = self.text(name)
        if not found:
            return None
        try:
            number = float(found)
        except ValueError:
            raise InvalidField(f"{name} must be a number", name) from None
        if not least <= number <= most:
            raise InvalidField(f"{name} must be from {least:g} to {most:g}", name)
        return number

    def whole_number(self, name: str, least: int, most: int) -> int | None:
        found = self.number(name, least, most)
        if found is not None and found != int(found):
            raise InvalidField(f"{name} must be a whole number, without a fraction", name)
        return None if found is None else int(found)

    def flag(self, name: str) -> bool:
        found = self.text(name).lower() or "false"
        if found not in _FLAGS:
            raise InvalidField(f"{name} must be true or false", name)
        return _FLAGS[found]


def check_choice(name: str, found: str, allowed: Sequence[str]) -> None:
    if found not in allowed:
        raise InvalidField(f"{name} cannot be {found[:100]!r}; use {' or '.join(allowed)}", name)


def _text(name: str, value: memoryview) -> str:
    if len(value) > _TEXT_BYTES_MAX:
        raise InvalidField(f"{name} is longer than {_TEXT_BYTES_MAX} bytes", name)
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        raise InvalidField(f"{name} is not UTF-8", name) from None
