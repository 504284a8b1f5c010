from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequestError
from services.cron import fires_after, parse_cron


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(cron: str, zone: str, after: str, count: int) -> list[str]:
    return [f"{t:%m-%d %H:%M}" for t in islice(fires_after(cron, zone, at(after)), count)]


@pytest.mark.parametrize(
    "cron",
    [
        "0 0 31 2 *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "5-1 * * * *",
        "*/0 * * * *",
        "* * * *",
        "* * * * * *",
        "@daily",
        "every day",
        "",
        "1" * 500,
        "0 0 * * 1#6",
    ],
)
def test_expression_that_never_fires_is_refused_with_its_field(cron):
    with pytest.raises(InvalidRequestError) as error:
        parse_cron(cron, "UTC")
    assert error.value.field == "cron"


@pytest.mark.parametrize(
    "zone", ["Europe/Atlantis", "", "../../etc/passwd", "/etc/localtime", "UTC\0", "CEST+1x"]
)
def test_zone_that_does_not_exist_is_refused_with_its_field(zone):
    with pytest.raises(InvalidRequestError) as error:
        parse_cron("0 3 * * *", zone)
    assert error.value.field == "timezone"


@pytest.mark.parametrize(
    "cron", ["0 0 29 2 *", "0 0 31 2 1", "0 3 * * MON-FRI", "*/15 * L * *", "0 0 29 2 */7"]
)
def test_rare_times_are_times(cron):
    parse_cron(cron, "Europe/Berlin")


def test_fixed_hour_follows_the_clock_on_the_wall():
    # Summer time ends on 25 October: 03:00 is 01:00 UTC before and 02:00 UTC after.
    assert fires("0 3 * * *", "Europe/Berlin", "2026-10-24T00:00", 3) == [
        "10-24 01:00",
        "10-25 02:00",
        "10-26 02:00",
    ]


def test_time_in_the_missing_hour_fires_once_right_after_it():
    # On 29 March, 02:30 does not exist.
    found = fires("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", 2)
    assert found == ["03-29 01:00", "03-30 00:30"]


def test_time_in_the_hour_that_comes_twice_fires_once():
    found = fires("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 2)
    assert found == ["10-25 00:30", "10-26 01:30"]


def test_every_half_hour_is_every_half_hour():
    found = fires("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:00", 4)
    assert found == ["10-25 00:30", "10-25 01:00", "10-25 01:30", "10-25 02:00"]


@given(
    minute=st.sampled_from(["0", "30", "*/7", "5-50/9"]),
    hour=st.sampled_from(["*", "2", "1-3", "*/2"]),
    zone=st.sampled_from(
        ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
    ),
    start=st.integers(1_577_836_800, 1_893_456_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
)
def test_times_rise_and_a_search_from_any_of_them_goes_on_alike(minute, hour, zone, start):
    cron = f"{minute} {hour} * * *"
    found = list(islice(fires_after(cron, zone, start), 30))
    assert all(a < b for a, b in pairwise([start, *found]))
    for here, following in pairwise(found):
        assert next(fires_after(cron, zone, here)) == following
        assert next(fires_after(cron, zone, following - timedelta(seconds=1))) == following
