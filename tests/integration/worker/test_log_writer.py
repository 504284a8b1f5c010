"""The one thread that stores the output of all attempts of a worker."""

import pytest

from core.ids import new_id
from services.log_pump import LogWriter
from tests.support.queue import QueueWorld


@pytest.mark.timeout(20)
def test_what_goes_wrong_once_does_not_end_the_storing_of_output(world: QueueWorld):
    told = []

    def publish(chunks) -> None:
        told.extend(chunks)
        if len(told) == 1:
            raise RuntimeError("nobody foresaw this")

    writer = LogWriter(world.engine, publish)
    writer.start()
    try:
        for _ in range(2):
            pump = writer.open(new_id(), new_id(), 1, cap_bytes=1 << 16)
            pump.write("run", "stdout", b"x")
            assert pump.close().stored_bytes == 1
    finally:
        writer.stop()
    assert [row["bytes"] for row in world.execute("SELECT bytes FROM log_chunks")] == [b"x", b"x"]
