"""Mutants that no longer apply would be killed by nobody: `./run mutants` runs them, this looks only at the source."""

import re

import pytest

from tests.mutants.catalogue import MUTANTS, Mutant
from tests.support.launching import REPOSITORY


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_still_applies_and_its_tests_are_there(mutant: Mutant):
    source = (REPOSITORY / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.old) == mutant.times
    assert mutant.new != mutant.old
    for test in mutant.tests:
        file, _, name = test.partition("::")
        text = (REPOSITORY / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"def {name}\(", text), test
