"""A SWE-bench style evaluation of a real library, end to end: `python -m examples.swe_eval`."""
