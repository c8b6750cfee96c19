"""What several modules of this folder share, for each takes a while to start."""

from collections.abc import Iterator

import pytest

from tests.integration.serving.site import Site, site
from tests.support.processes import Frontend, ranch


@pytest.fixture(scope="package")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two frontends and two workers. What a test kills it starts again."""
    with site(tmp_path_factory.mktemp("pair")) as started:
        yield started


@pytest.fixture(scope="package")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    """`remuda up` as it is started by most people. Models of a test have names of their own."""
    with ranch(tmp_path_factory.mktemp("alone") / "ranch") as place:
        yield place.up()
