import time

import pytest

from core.ids import new_id, read_id
from tests.support.spellings import OTHER_SPELLINGS


def test_ids_are_version_seven_and_sort_by_time():
    before = time.time_ns() // 1_000_000
    ids = [new_id() for _ in range(1000)]
    after = time.time_ns() // 1_000_000
    assert {i.version for i in ids} == {7}
    assert {i.variant for i in ids} == {"specified in RFC 4122"}
    assert len(set(ids)) == 1000
    assert all(before <= i.int >> 80 <= after for i in ids)


def test_an_id_is_read_in_its_own_spelling():
    made = new_id()
    assert read_id(str(made)) == made


@pytest.mark.parametrize("spell", OTHER_SPELLINGS.values(), ids=OTHER_SPELLINGS)
def test_an_id_in_another_spelling_is_none(spell):
    assert read_id(spell(new_id())) is None


@pytest.mark.parametrize("change", ["{}\n", " {}", "{} ", "{}0", ""], ids=repr)
def test_what_is_around_an_id_is_no_part_of_it(change):
    assert read_id(change.format(new_id())) is None
