from services.batches import _to_counts


def test_counts_come_in_one_order_whatever_the_database_gives():
    rows = [("queued", None, 3), ("finished", "failed", 2), ("finished", "passed", 1), ("blocked", None, 1)]
    for given in (rows, rows[::-1]):
        counts = _to_counts(7, given)
        assert list(counts.by_state.items()) == [("blocked", 1), ("queued", 3), ("finished", 3)]
        assert list(counts.by_outcome.items()) == [("passed", 1), ("failed", 2)]
