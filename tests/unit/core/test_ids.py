import time

from core.ids import new_id


def test_ids_are_version_seven_and_sort_by_time():
    before = time.time_ns() // 1_000_000
    ids = [new_id() for _ in range(1000)]
    after = time.time_ns() // 1_000_000
    assert {i.version for i in ids} == {7}
    assert {i.variant for i in ids} == {"specified in RFC 4122"}
    assert len(set(ids)) == 1000
    assert all(before <= i.int >> 80 <= after for i in ids)
