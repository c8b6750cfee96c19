"""What crosses between the fleet and its surroundings."""

from remuda.fleet.ports import BusCredentials
from tests.support.nodes import NOON


def test_the_text_of_credentials_does_not_give_them_away() -> None:
    assert "hunter2" not in repr(BusCredentials("hunter2", "hunter2", NOON))
