import pytest

from runtimes.base import VolumeClaim
from runtimes.container_volumes import _name_of


@pytest.mark.parametrize(
    ("claim", "allowed", "expected"),
    [
        (VolumeClaim("data"), (), "data"),
        (VolumeClaim("data", owner="7"), ("data",), "data"),
        (VolumeClaim("data", owner="7"), ("dat?",), "data"),
        (VolumeClaim("data", owner="7"), ("other",), "sandmill-7902699be42c8a8e-data"),
        (VolumeClaim("data", owner="8"), (), "sandmill-2c624232cdd22177-data"),
    ],
)
def test_name_in_the_engine_is_the_owners_unless_an_operator_allows_it(claim, allowed, expected):
    assert _name_of(claim, allowed) == expected


def test_long_names_stay_different_and_short_enough():
    names = {_name_of(VolumeClaim("x" * 252 + end, owner="7"), ()) for end in "ab"}
    assert len(names) == 2
    assert max(map(len, names)) <= 255
