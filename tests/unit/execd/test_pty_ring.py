from hypothesis import given
from hypothesis import strategies as st

from execd import pty_ring
from execd.pty_ring import RING_BYTES, ReplayRing


def test_a_replay_is_one_message_of_a_mebibyte() -> None:
    assert 1 + 8 + RING_BYTES == 1024 * 1024


@given(parts=st.lists(st.binary(max_size=60), max_size=20), offset=st.integers(0, 500))
def test_what_is_kept_is_the_end_of_all_output(parts: list[bytes], offset: int) -> None:
    whole = b"".join(parts)
    ring = ReplayRing()
    for part in parts:
        ring.add(part)
    start, data = ring.since(offset)
    assert ring.end == len(whole)
    assert data == whole[start:]
    assert start == max(offset, 0)


def test_old_output_falls_out_and_memory_stays_bounded() -> None:
    ring = ReplayRing()
    for number in range(40):
        ring.add(bytes([number]) * 100_000)
    start, data = ring.since(0)
    assert (start, len(data)) == (4_000_000 - RING_BYTES, RING_BYTES)
    assert data.endswith(bytes([39]) * 100_000)
    assert ring.since(3_999_999) == (3_999_999, bytes([39]))
    assert len(ring._kept) <= pty_ring.RING_BYTES
