from uuid import UUID

from traffic.access import AccessNotes

ONE, TWO = UUID(int=1), UUID(int=2)


def test_each_sandbox_is_told_of_at_most_once_in_a_while():
    now, told = [0.0], []
    notes = AccessNotes(told.append, interval_seconds=60, monotonic=lambda: now[0])
    for second, sandbox in ((0, ONE), (1, TWO), (59, ONE), (60, ONE), (60, TWO), (61, TWO)):
        now[0] = second
        notes.note(sandbox, [])
    assert told == [ONE, TWO, ONE, TWO]


def test_who_asks_not_to_count_does_not():
    told = []
    notes = AccessNotes(told.append)
    notes.note(ONE, [(b"OpenSandbox-Access-Renew", b"SKIP")])
    assert told == []
    notes.note(ONE, [(b"OpenSandbox-Access-Renew", b"other")])
    assert told == [ONE]
