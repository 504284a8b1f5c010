import subprocess
import sys

SCRIPT = """
import gc
from core.heap import settle_heap

class Kept: pass
kept = [Kept() for _ in range(50)]
settle_heap()
young = Kept()
young.itself = young
tracked = gc.get_objects()
print(gc.get_freeze_count() > 50, any(each is kept[0] for each in tracked), any(each is young for each in tracked))
"""


def test_what_is_there_is_left_out_of_later_collections_and_what_comes_is_not():
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "False", "True"]
