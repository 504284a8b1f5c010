"""The profile for container engines: the same list as the local filter's, in another language."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimes.local.seccomp import ANY_BUT_INIT, ONLY_ONESELF, TERMINAL_REQUESTS
from runtimes.local.syscalls import AARCH64, X86_64
from runtimes.seccomp_profile import CONDITIONAL, PROFILE_FOLDER, profile_text, seccomp_profile


@pytest.mark.parametrize("table", [X86_64, AARCH64], ids=lambda table: table.machine)
def test_profile_denies_by_default_and_allows_the_list(table):
    profile = json.loads(seccomp_profile(table))
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    rules = {(tuple(rule["names"]), rule["action"]) for rule in profile["syscalls"]}
    assert (("clone3",), "SCMP_ACT_ERRNO") in rules
    free = {name for rule in profile["syscalls"] if not rule.get("args") for name in rule["names"]}
    assert free - {"clone3"} == set(table.allowed) - CONDITIONAL


def is_allowed(profile, name, *arguments):
    """What an engine makes of a profile: a rule holds if all its conditions do, and any one rule is enough."""

    def holds(condition):
        given = arguments[condition["index"]]
        if condition["op"] == "SCMP_CMP_MASKED_EQ":
            return given & condition["value"] == condition["valueTwo"]
        assert condition["op"] == "SCMP_CMP_EQ"
        return given == condition["value"]

    rules = [rule for rule in profile["syscalls"] if name in rule["names"]]
    return any(rule["action"] == "SCMP_ACT_ALLOW" and all(map(holds, rule.get("args", ()))) for rule in rules)


PROFILE = json.loads(seccomp_profile(X86_64))


@settings(deadline=None)
@given(high=st.sampled_from([0, 1 << 32, 1 << 63, 0xFFFFFFFF << 32]))
def test_profile_lets_no_call_steer_process_1(high):
    for name in (*ONLY_ONESELF, *ANY_BUT_INIT):
        assert not is_allowed(PROFILE, name, 1 | high)
        assert is_allowed(PROFILE, name, high)
    assert [is_allowed(PROFILE, "setpriority", k | high, 1 | high) for k in (0, 1, 2)] == [False] * 3
    assert [is_allowed(PROFILE, "setpriority", k | high, 0) for k in (0, 1, 2)] == [True, False, False]
    assert [is_allowed(PROFILE, "ioprio_set", k | high, 1 | high) for k in (1, 2, 3)] == [False] * 3
    assert [is_allowed(PROFILE, "ioprio_set", k | high, 0) for k in (1, 2, 3)] == [True, False, False]


@settings(deadline=None)
@given(high=st.sampled_from([0, 1 << 32, 1 << 63]), request=st.integers(0, (1 << 32) - 1))
def test_profile_types_into_no_terminal_and_refuses_no_other_request(high, request):
    for typing in TERMINAL_REQUESTS:
        assert not is_allowed(PROFILE, "ioctl", 0, typing | high)
        assert all(is_allowed(PROFILE, "ioctl", 0, (typing ^ 1 << bit) | high) for bit in range(32))
    assert is_allowed(PROFILE, "ioctl", 0, request | high) == (request not in TERMINAL_REQUESTS)


@settings(deadline=None)
@given(number=st.integers(2, (1 << 22) - 1))
def test_profile_lets_own_threads_and_children_be_scheduled(number):
    assert all(is_allowed(PROFILE, name, number) for name in ANY_BUT_INIT)
    assert is_allowed(PROFILE, "setpriority", 0, number)
    assert not any(is_allowed(PROFILE, name, number) for name in ONLY_ONESELF)


@pytest.mark.parametrize("table", [X86_64, AARCH64], ids=lambda table: table.machine)
def test_file_in_the_repository_is_the_list(table):
    """Written by `python -m runtimes.seccomp_profile`."""
    assert (PROFILE_FOLDER / f"{table.machine}.json").read_text() == profile_text(table)
