"""A backend's name and a machine to one build, or to a reason that a person can act on. Pure.

The rules are those of LocalAI's workers, so that both choose alike; where a machine would get less than
it could, the choice carries a warning. Peers search whole names for parts of words; here the three that
hide inside other words must stand alone, so that `amd64` is no AMD build, `chip` no HIP build,
`intelligence` no Intel one.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from remuda.gallery.model import (
    BUILTIN,
    Found,
    Gallery,
    GalleryEntry,
    MachineProfile,
    Reading,
    find,
    preferring,
    sharing_alias,
    similar,
)

DISABLED: Final = "disable"
"""The capability of a machine whose operator wants no filter at all."""

_PREFERENCES: Final = (
    ("nvidia", ("cuda", "vulkan", "cpu")),
    ("amd", ("rocm", "hip", "vulkan", "cpu")),
    ("intel", ("sycl", "intel", "cpu")),
    ("metal", ("metal", "cpu")),
    ("darwin-x86", ("darwin-x86", "cpu")),
    ("vulkan", ("vulkan", "cpu")),
)
_GPU_CAPABILITIES: Final = ("nvidia", "amd", "intel", "metal", "vulkan")


def _alone(*words: str) -> str:
    return rf"(?<![a-z0-9])(?:{'|'.join(words)})(?![a-z0-9])"


# The first that is found decides: what it looks like, what it is called, which capabilities it needs.
_RULES: Final = tuple(
    (re.compile(pattern), hardware, prefixes)
    for pattern, hardware, prefixes in (
        (r"darwin|mlx|metal", "macOS", ("metal", "darwin-x86")),
        (r"l4t", "NVIDIA Jetson (L4T)", ("nvidia-l4t",)),
        (r"cuda|nvidia", "NVIDIA GPUs", ("nvidia",)),
        (rf"rocm|hipblas|{_alone('hip', 'amd', 'amdgpu')}", "AMD GPUs", ("amd",)),
        (rf"sycl|{_alone('intel')}", "Intel GPUs", ("intel",)),
    )
)
_ARCHITECTURES: Final = (
    (re.compile(_alone("amd64", "x86", "x86_64", "x64")), "amd64"),
    (re.compile(_alone("arm64", "aarch64")), "arm64"),
)


def misfit(entry: GalleryEntry, machine: MachineProfile) -> str:
    """Why this build does not run on that machine, to follow its name in a sentence; empty when it does."""
    capability = machine.effective_capability
    if capability == DISABLED:
        return ""
    looks = f"{entry.name} {entry.uri}".lower()
    for pattern, hardware, prefixes in _RULES:
        if pattern.search(looks):
            if capability.startswith(prefixes):
                break
            return f"is for {hardware}, and this machine reports {capability}"
    built_for = architectures(entry)
    if built_for and machine.architecture not in built_for:
        return f"is for {' and '.join(built_for)}, and this machine is {machine.platform}"
    return ""


def architectures(entry: GalleryEntry) -> tuple[str, ...]:
    """Those that the build's name or the last part of its URI spell out; empty: it does not say."""
    looks = f"{entry.name} {entry.uri.rpartition('/')[2]}".lower()
    return tuple(name for pattern, name in _ARCHITECTURES if pattern.search(looks))


def preferred_tokens(capability: str) -> tuple[str, ...]:
    """What to look for in the names of builds that share an alias, best first."""
    return next((tokens for prefix, tokens in _PREFERENCES if capability.startswith(prefix)), ("cpu",))


def unsuited(entry: GalleryEntry, capability: str) -> bool:
    """It needs what this capability does not promise. A request by name gets it all the same."""
    tokens = preferred_tokens(capability)
    looks = f"{entry.name} {entry.uri}".lower()
    return capability != DISABLED and any(
        word in looks and word not in tokens for word in ("vulkan", "metal")
    )


def same_cuda(entry: GalleryEntry, capability: str) -> bool:
    """The build's name has the CUDA release that the machine reports."""
    release = re.search(r"cuda-(\d+)", capability)
    return release is not None and f"cuda{release[1]}" in entry.name.lower().replace("-", "")


def has_gpu(capability: str) -> bool:
    return capability.startswith(_GPU_CAPABILITIES)


def uses_gpu(entry: GalleryEntry) -> bool:
    looks = f"{entry.name} {entry.uri}".lower()
    return "vulkan" in looks or any(pattern.search(looks) for pattern, _, _ in _RULES)


_DID_YOU_MEAN: Final = "did you mean "
_RELEASED: Final = "latest-"
_NIGHTLY: Final = "master-"
_DEVELOPMENT: Final = "-development"
_NOT_AN_IMAGE: Final = re.compile(rf"{BUILTIN}|https?://|file:|ocifile://|[./~]")


def uris_of(entry: GalleryEntry) -> tuple[str, ...]:
    """The entry's own URI, its mirrors, then the nightly image and that image's development form.

    Published indexes name images that were never pushed under their release tag: hence the last two.
    """
    chain = [entry.uri, *entry.mirrors, *_nightly(entry.uri)]
    return tuple(dict.fromkeys(uri for uri in chain if uri))


def _nightly(uri: str) -> tuple[str, ...]:
    """Only a tag is rewritten: a host or a repository may be called `latest-` too, and a digest is final."""
    repository, colon, tag = uri.rpartition(":")
    if _NOT_AN_IMAGE.match(uri) or not colon or "/" in tag or "@" in repository or _RELEASED not in tag:
        return ()
    nightly = f"{repository}:{tag.replace(_RELEASED, _NIGHTLY, 1)}"
    return nightly, nightly + _DEVELOPMENT


_FALLBACKS: Final = ("default", "cpu")


@dataclass(frozen=True, slots=True)
class ResolvedBuild:
    """One concrete build. Only its name, never an alias or a meta backend's, is installed and reported."""

    requested: str
    gallery: Gallery
    entry: GalleryEntry
    why: str
    warnings: tuple[str, ...] = ()

    @property
    def uris(self) -> tuple[str, ...]:
        return uris_of(self.entry)


@dataclass(frozen=True, slots=True)
class Unresolved:
    requested: str
    reason: str
    hint: str = ""
    retryable: bool = False  # A gallery that cannot be read now may have it.


@dataclass(frozen=True, slots=True)
class BuildCandidate:
    """A build of a backend, as one machine sees it."""

    name: str
    found: Found | None  # None: an index names it, and no readable gallery has it.
    capabilities: tuple[str, ...]  # Those for which its meta backend names it.
    chosen: bool
    why: str


def resolve(readings: Sequence[Reading], name: str, machine: MachineProfile) -> ResolvedBuild | Unresolved:
    """The build of `name` for `machine`. What is returned always fits the machine."""
    return _Request(readings, name, machine).answer()


def candidates(readings: Sequence[Reading], name: str, machine: MachineProfile) -> tuple[BuildCandidate, ...]:
    """Every build that `name` could mean, with the one this machine gets and why not the others."""
    request = _Request(readings, name, machine)
    answer = request.answer()
    return tuple(request.seen(build, answer) for build in request.builds())


@dataclass(frozen=True, slots=True)
class _Build:
    name: str
    found: Found | None
    capabilities: tuple[str, ...] = ()


class _Request:
    """One question, with what is needed again and again to answer it."""

    def __init__(self, readings: Sequence[Reading], name: str, machine: MachineProfile) -> None:
        self.readings = readings
        self.name = name
        self.machine = machine
        self.capability = machine.effective_capability
        self.entry = find(readings, name)

    def answer(self) -> ResolvedBuild | Unresolved:
        if self.entry is None:
            return self._by_alias()
        return self._from_meta(self.entry) if self.entry.entry.meta else self._concrete(self.entry)

    def builds(self) -> tuple[_Build, ...]:
        if self.entry is None:
            return tuple(_Build(one.entry.name, one) for one in sharing_alias(self.readings, self.name))
        if not self.entry.entry.meta:
            return (_Build(self.entry.entry.name, self.entry),)
        keys = defaultdict[str, list[str]](list)
        for capability, build in self.entry.entry.capabilities:
            keys[build].append(capability)
        return tuple(_Build(build, self._named(build), tuple(keys[build])) for build in keys)

    def seen(self, build: _Build, answer: ResolvedBuild | Unresolved) -> BuildCandidate:
        chosen = isinstance(answer, ResolvedBuild) and build.found == Found(answer.gallery, answer.entry)
        why = answer.why if isinstance(answer, ResolvedBuild) and chosen else self._why_not(build)
        return BuildCandidate(build.name, build.found, build.capabilities, chosen, why)

    def _why_not(self, build: _Build) -> str:
        if build.found is None:
            return f"no gallery has {build.name}" + (" (not all could be read)" if self._unread() else "")
        return self._unfit(build.found) or f"another comes first for a machine that reports {self.capability}"

    # A concrete entry, asked for by its name.

    def _concrete(self, found: Found) -> ResolvedBuild | Unresolved:
        if reason := self._unfit(found):
            return Unresolved(self.name, reason, hint=self._what_fits(found))
        return self._resolved(found, "because it was asked for by name")

    def _what_fits(self, found: Found) -> str:
        others = sharing_alias(self.readings, f"{found.gallery.name}@{found.entry.alias}")
        fitting = (one.entry for one in others if not self._why_unsuited(one))
        names = sorted(entry.name for entry in fitting if not entry.development)
        return f"these builds fit this machine: {', '.join(names)}" if names else ""

    # A meta backend: its map decides.

    def _from_meta(self, meta: Found) -> ResolvedBuild | Unresolved:
        named = dict(meta.entry.capabilities)
        key = next((key for key in (self.capability, *_FALLBACKS) if key in named), None)
        if key is None:
            return Unresolved(
                self.name,
                f"{meta.entry.name} has no build for this machine, which reports {self.capability}",
                hint=f"it has builds for {_listed(meta.entry)}",
            )
        found = self._named(named[key])
        obstacle = self._missing(named[key]) if found is None else self._unfit(found)
        if found is not None and not obstacle:
            return self._resolved(found, self._because(meta.entry, key), self._slower(found, obstacle=""))
        return self._builtin_instead(meta, obstacle) or Unresolved(
            self.name,
            f"{meta.entry.name} names {named[key]} for machines that report {key}; {obstacle}",
            hint=f"{meta.entry.name} has builds for {_listed(meta.entry)}",
            retryable=found is None and bool(self._unread()),
        )

    def _named(self, build: str) -> Found | None:
        return find(preferring(self.readings, self.name), build)

    def _unfit(self, found: Found) -> str:
        if found.entry.meta:
            return f"{found.entry.name} is no build but a meta backend itself"
        reason = misfit(found.entry, self.machine)
        return f"{found.entry.name} {reason}" if reason else ""

    def _because(self, meta: GalleryEntry, key: str) -> str:
        if key == self.capability:
            return f"because this machine reports {key}"
        return f"because this machine reports {self.capability}, for which {meta.name} names its {key} build"

    def _builtin_instead(self, meta: Found, obstacle: str) -> ResolvedBuild | None:
        """What ships with Remuda needs no gallery, so it stands in for a build that cannot be had."""
        named = dict(meta.entry.capabilities)
        for build in (named[key] for key in _FALLBACKS if key in named):
            found = self._named(build)
            if found is not None and found.entry.builtin and not self._unfit(found):
                because = f"because it ships with Remuda, and {obstacle}"
                return self._resolved(found, because, self._slower(found, obstacle))
        return None

    # An alias: the builds' names decide.

    def _by_alias(self) -> ResolvedBuild | Unresolved:
        sharing = sharing_alias(self.readings, self.name)
        if not sharing:
            return self._unknown()
        ranked = [(self._rank(one.entry), one) for one in sharing if not self._why_unsuited(one)]
        if not ranked:
            reasons = sorted(self._why_unsuited(found) for found in sharing)
            return Unresolved(
                self.name,
                f"no build of {self.name} fits this machine, which reports {self.capability}",
                hint="; ".join(reasons),
            )
        _, best = min(ranked, key=lambda pair: pair[0])
        return self._resolved(
            best,
            f"because it suits a machine that reports {self.capability} best among those called {self.name}",
            self._slower(best, obstacle=""),
        )

    def _rank(self, entry: GalleryEntry) -> tuple[bool, int, bool, str]:
        """Released before development, then by token, then the same CUDA; the name settles the rest."""
        tokens = preferred_tokens(self.capability)
        if self.capability.startswith("nvidia-l4t"):
            tokens = ("l4t", *tokens)  # Its builds need not say which CUDA they have.
        name = entry.name.lower()
        position = next((place for place, token in enumerate(tokens) if token in name), len(tokens))
        return entry.development, position, not same_cuda(entry, self.capability), entry.name

    def _why_unsuited(self, found: Found) -> str:
        if unsuited(found.entry, self.capability):
            return f"{found.entry.name} is for another kind of GPU"
        return self._unfit(found)

    # Words.

    def _resolved(self, found: Found, because: str, warnings: tuple[str, ...] = ()) -> ResolvedBuild:
        return ResolvedBuild(
            self.name, found.gallery, found.entry, f"{found.entry.name}, {because}", warnings
        )

    def _slower(self, found: Found, obstacle: str) -> tuple[str, ...]:
        """A GPU that will stay idle is worth a warning, whatever the reason."""
        if not has_gpu(self.capability) or uses_gpu(found.entry):
            return ()
        reason = f": {obstacle}" if obstacle else f": {self.name} has no build for {self.capability}"
        return (f"{found.entry.name} runs on the CPU and leaves this machine's GPU idle{reason}",)

    def _missing(self, build: str) -> str:
        unread = self._unread()
        return f"no gallery has {build}" + (f" ({unread})" if unread else "")

    def _unknown(self) -> Unresolved:
        unread, hint = self._unread(), self._where_to_look()
        reason = f"no gallery{' that could be read' if unread else ''} has a backend called {self.name}"
        troubles = [*([unread] if unread else []), *self._outdated()]
        if troubles and hint.startswith(_DID_YOU_MEAN):  # It would not be found behind all that.
            reason = f"{reason}: {hint} ({'; '.join(troubles)})"
            return Unresolved(self.name, reason, retryable=bool(unread))
        return Unresolved(self.name, "; ".join([reason, *troubles]), hint, retryable=bool(unread))

    def _where_to_look(self) -> str:
        gallery, at, _ = self.name.partition("@")
        known = [reading.gallery.name for reading in self.readings]
        if at and gallery.lower() not in map(str.lower, known):
            return f"there is no gallery {gallery}; the galleries are {', '.join(known)}"
        alike = similar(self.readings, self.name)
        return (
            f"{_DID_YOU_MEAN}{' or '.join(alike)}?"
            if alike
            else "`remuda backends search` lists what there is"
        )

    def _unread(self) -> str:
        return "; ".join(
            f"gallery {reading.gallery.name} cannot be used: {reading.trouble_in_short}"
            for reading in self.readings
            if not reading.readable
        )

    def _outdated(self) -> list[str]:
        return [
            f"gallery {reading.gallery.name} could not be read just now, so an older copy of it was "
            f"searched: {reading.trouble_in_short}"
            for reading in self.readings
            if reading.readable and reading.trouble
        ]


def _listed(meta: GalleryEntry) -> str:
    return ", ".join(f"{capability} ({build})" for capability, build in sorted(meta.capabilities))
