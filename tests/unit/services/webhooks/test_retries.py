from datetime import UTC, datetime
from random import Random

import pytest

from services.webhook_retries import MAX_TRIES, Answer, Verb, decide

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


def verb(status, tries=1):
    return decide(Answer(status), tries, now=NOW, rng=Random(1)).verb


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, Verb.DONE),
        (204, Verb.DONE),
        (299, Verb.DONE),
        (301, Verb.RETRY),
        (400, Verb.RETRY),
        (404, Verb.RETRY),
        (410, Verb.DISABLE),
        (429, Verb.RETRY),
        (500, Verb.RETRY),
        (None, Verb.RETRY),
    ],
)
def test_answer_decides(status, expected):
    assert verb(status) is expected


def test_last_try_is_the_last():
    assert (verb(500, MAX_TRIES - 1), verb(500, MAX_TRIES)) == (Verb.RETRY, Verb.GIVE_UP)
    assert verb(200, MAX_TRIES) is Verb.DONE


def test_pauses_grow_with_jitter_to_about_a_day_in_all():
    for seed in range(20):
        rng = Random(seed)
        pauses = [decide(Answer(500), n, now=NOW, rng=rng).seconds for n in range(1, MAX_TRIES)]
        assert 3.75 <= pauses[0] <= 6.25
        assert max(pauses) <= 1.25 * 6 * 3600
        assert 18 * 3600 < sum(pauses) < 32 * 3600
    assert len({decide(Answer(500), 3, now=NOW, rng=Random(seed)).seconds for seed in range(20)}) == 20


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("120", 120),
        ("Tue, 01 Dec 2026 12:10:00 GMT", 600),
        ("99999999999999", 86400),
        ("Tue, 01 Dec 2099 12:10:00 GMT", 86400),
        ("Tue, 01 Dec 2020 12:10:00 GMT", None),
        ("-5", None),
        ("soon", None),
        ("Tue, 01 Dec 2026 12:10:00", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_obeyed_within_reason(header, expected):
    seconds = decide(Answer(503, retry_after=header), 1, now=NOW, rng=Random(1)).seconds
    assert seconds == expected if expected is not None else 3.75 <= seconds <= 6.25
