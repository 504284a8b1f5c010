import time
import tracemalloc
from pathlib import Path

import pytest

from execd.accounts import Account, Accounts
from execd.errors import UnknownAccountError

USERS = """root:x:0:0:root:/root:/bin/sh
app:x:1000:1001:An app:/home/app:/bin/sh
second:x:1000:7::/:/bin/sh
huge:x:4294967295:1::/:
long:x:99999999999999999999:1::/:
digits:x:\u0663:1::/:
short:x:5:5
negative:x:-1:-1::/:
last:x:4294967294:4294967294::/nowhere:
"""
GROUPS = "root:x:0:\nstaff:x:50:app\nbad:x:x:\n"


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    (tmp_path / "passwd").write_text(USERS)
    (tmp_path / "group").write_text(GROUPS)
    return Accounts(str(tmp_path / "passwd"), str(tmp_path / "group"))


def test_lines_that_are_no_accounts_are_left_out(accounts: Accounts) -> None:
    assert [account.name for account in accounts.users()] == ["root", "app", "second", "last"]
    assert accounts.user_by_id(1000) == Account("app", 1000, 1001, "/home/app")
    assert accounts.groups() == {"root": 0, "staff": 50}


@pytest.mark.parametrize(
    ("owner", "group", "numbers"),
    [
        (None, None, (-1, -1)),
        ("app", "staff", (1000, 50)),
        ("0", "12345", (0, 12345)),
        ("4294967294", None, (4294967294, -1)),
    ],
)
def test_names_and_numbers_become_numbers(
    accounts: Accounts, owner: str | None, group: str | None, numbers: tuple[int, int]
) -> None:
    assert accounts.numbers(owner, group) == numbers


@pytest.mark.parametrize(
    ("owner", "group", "said"),
    [
        ("nobody-here", None, "owner"),
        ("4294967295", None, "owner"),
        ("9" * 5000, None, "owner"),
        ("\u0663", None, "owner"),
        ("app", "nobody-here", "group"),
        (None, "4294967296", "group"),
    ],
)
def test_names_nobody_has_are_told(
    accounts: Accounts, owner: str | None, group: str | None, said: str
) -> None:
    with pytest.raises(UnknownAccountError, match=said):
        accounts.numbers(owner, group)


def test_a_hostile_file_takes_little_time_and_memory(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_bytes(b":::1:1::\n" * 1_000_000 + b"x:x:%b:1::/:\n" % (b"9" * 10_000))
    accounts = Accounts(str(tmp_path / "passwd"), str(tmp_path / "missing"))
    tracemalloc.start()
    started = time.process_time()
    assert accounts.user_by_id(77) is None
    assert accounts.groups() == {}
    elapsed = time.process_time() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32_000_000
    assert elapsed < 5
