"""Ten cells of the crash matrix, other ones every day: `./run chaos` runs them all."""

import os

import pytest

from tests.chaos.cells import LIVE_SLACK_SECONDS, prepare, rotating_cells, run_cell
from tests.chaos.harness import chaos_stack
from tests.chaos.judge import left_behind
from tests.support.invariants import watched

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_ten_cells_of_today_end_right(tmp_path):
    cells = rotating_cells(10, runtimes=["fake"], seed=os.environ.get("CHAOS_SEED"))
    found = {}
    with chaos_stack(tmp_path / "home") as stack:
        prepare(stack)
        with watched(stack.database_url, slack_seconds=LIVE_SLACK_SECONDS) as watch:
            for cell in cells:
                print(cell, flush=True)
                problems = run_cell(stack, cell, watch)
                if problems:
                    found[str(cell)] = problems
            left = left_behind(stack)
    assert found == {}
    assert left == []
