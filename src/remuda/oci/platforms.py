"""Which of an image's builds fits a machine, or why none does. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from remuda.oci.model import Descriptor, Platform

# What a build without a variant was made for; newer machines of a family run what older ones do.
_LEVELS_BY_DEFAULT = {"amd64": 1, "arm": 7, "arm64": 8}
_ARCHITECTURES = {
    "x86_64": "amd64",
    "amd64": "amd64",
    "i386": "386",
    "i686": "386",
    "aarch64": "arm64",
    "arm64": "arm64",
    "armv6l": "arm/v6",
    "armv7l": "arm/v7",
    "armv8l": "arm/v8",
}
_LEVEL = re.compile(r"v(\d{1,3})")


@dataclass(frozen=True, slots=True)
class Unfit:
    """There are builds, but none for this machine."""

    reason: str


def platform_of(system: str, machine: str) -> Platform:
    """A machine as images name it, from what the operating system calls itself and its processor."""
    architecture, _, variant = _ARCHITECTURES.get(machine.lower(), machine.lower()).partition("/")
    return Platform(system.lower(), architecture, variant)


def choose(builds: Sequence[Descriptor], wanted: Platform) -> Descriptor | Unfit:
    """The most specific build that the machine can run; of equals the first listed.

    Attestations are no builds. A single build that does not say what it is for may be the right one: its
    configuration will tell.
    """
    real = [build for build in builds if not _is_attestation(build)]
    fitting = [build for build in real if build.platform is not None and fits(build.platform, wanted)]
    if fitting:
        return max(fitting, key=lambda build: _level(build.platform))
    unlabelled = [build for build in real if build.platform is None]
    if len(unlabelled) == 1:
        return unlabelled[0]
    return Unfit(why_unfit([build.platform for build in real if build.platform is not None], wanted))


def fits(built_for: Platform, wanted: Platform) -> bool:
    """Whether the machine can run it. A part that a build leaves empty says nothing against it."""
    if built_for.os not in ("", wanted.os) or built_for.architecture not in ("", wanted.architecture):
        return False
    have, need = _level(wanted), _level(built_for)
    if have and need:
        return need <= have
    return built_for.variant in ("", wanted.variant)


def why_unfit(available: Sequence[Platform], wanted: Platform) -> str:
    """Both what is missing and what there is."""
    names = sorted({str(platform) for platform in available})
    match names:
        case []:
            return f"no build for {wanted}; there is none for any machine"
        case [only]:
            return f"no build for {wanted}; there is one for {only}"
        case _:
            return f"no build for {wanted}; there are builds for {', '.join(names[:-1])} and {names[-1]}"


def _is_attestation(build: Descriptor) -> bool:
    return build.platform is not None and "unknown" in (build.platform.os, build.platform.architecture)


def _level(platform: Platform | None) -> int:
    """The variant as a number; 0 where it cannot be compared."""
    if platform is None or platform.architecture not in _LEVELS_BY_DEFAULT:
        return 0
    if not platform.variant:
        return _LEVELS_BY_DEFAULT[platform.architecture]
    level = _LEVEL.fullmatch(platform.variant)
    return int(level[1]) if level else 0
