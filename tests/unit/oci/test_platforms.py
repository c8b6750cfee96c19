"""Which build a machine gets, and what it is told when there is none."""

import pytest

from remuda.oci.model import Descriptor, Platform, Unfit, choose, platform_of


def build(platform: str | None, number: int = 0) -> Descriptor:
    parsed = Platform(*platform.split("/")) if platform else None
    return Descriptor(f"sha256:{number:064x}", 1, "application/vnd.oci.image.manifest.v1+json", parsed)


def chosen(platforms: list[str | None], wanted: str) -> str | Unfit | None:
    builds = [build(platform, number) for number, platform in enumerate(platforms)]
    answer = choose(builds, Platform(*wanted.split("/")))
    return answer if isinstance(answer, Unfit) else platforms[builds.index(answer)]


@pytest.mark.parametrize(
    ("platforms", "wanted", "expected"),
    [
        (["linux/amd64", "linux/arm64"], "linux/arm64", "linux/arm64"),
        (["linux/arm64/v8"], "linux/arm64", "linux/arm64/v8"),
        (["linux/arm64"], "linux/arm64/v8", "linux/arm64"),
        (["linux/arm/v5", "linux/arm/v7", "linux/arm/v6"], "linux/arm/v7", "linux/arm/v7"),
        (["linux/arm/v5", "linux/arm/v6"], "linux/arm/v7", "linux/arm/v6"),
        (["linux/arm/v6", "linux/arm/v7"], "linux/arm", "linux/arm/v7"),
        (["linux/amd64/v3", "linux/amd64"], "linux/amd64", "linux/amd64"),
        (["linux/amd64", "linux/amd64/v2", "linux/amd64/v4"], "linux/amd64/v3", "linux/amd64/v2"),
        (["windows/amd64", "linux/amd64"], "linux/amd64", "linux/amd64"),
        (["unknown/unknown", "linux/amd64"], "linux/amd64", "linux/amd64"),
        ([None], "linux/amd64", None),
        ([None, "linux/amd64"], "linux/amd64", "linux/amd64"),
    ],
)
def test_the_most_specific_fitting_build_is_chosen(
    platforms: list[str | None], wanted: str, expected: str | None
) -> None:
    assert chosen(platforms, wanted) == expected


@pytest.mark.parametrize(
    ("platforms", "wanted", "reason"),
    [
        (["linux/amd64"], "linux/arm64", "no build for linux/arm64; there is one for linux/amd64"),
        (
            ["linux/amd64", "unknown/unknown", "darwin/arm64", "linux/386"],
            "linux/arm64",
            "no build for linux/arm64; there are builds for darwin/arm64, linux/386 and linux/amd64",
        ),
        (["linux/arm/v7"], "linux/arm/v6", "no build for linux/arm/v6; there is one for linux/arm/v7"),
        (["unknown/unknown"], "linux/amd64", "no build for linux/amd64; there is none for any machine"),
        ([], "linux/amd64", "no build for linux/amd64; there is none for any machine"),
    ],
)
def test_without_a_build_the_reason_says_what_there_is(
    platforms: list[str | None], wanted: str, reason: str
) -> None:
    assert chosen(platforms, wanted) == Unfit(reason)


@pytest.mark.parametrize(
    ("system", "machine", "expected"),
    [
        ("Linux", "x86_64", "linux/amd64"),
        ("Linux", "aarch64", "linux/arm64"),
        ("Linux", "armv7l", "linux/arm/v7"),
        ("Darwin", "arm64", "darwin/arm64"),
        ("Linux", "riscv64", "linux/riscv64"),
    ],
)
def test_machines_are_named_as_images_name_them(system: str, machine: str, expected: str) -> None:
    assert str(platform_of(system, machine)) == expected
