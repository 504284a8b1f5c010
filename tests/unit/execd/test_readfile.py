import os
from pathlib import Path

from execd.accounts import Account, Accounts
from execd.readfile import read_small_file


def test_only_regular_files_are_read_and_only_so_far(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 200_000)
    os.mkfifo(tmp_path / "fifo")
    assert read_small_file(str(tmp_path / "f"), max_bytes=100_000) == b"x" * 100_000
    for path in (tmp_path / "fifo", tmp_path, tmp_path / "missing", Path("/dev/zero")):
        assert read_small_file(str(path), max_bytes=10) is None
    assert read_small_file("nul\0", max_bytes=10) is None


def test_accounts_survive_what_a_sandbox_writes_into_them(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_bytes(
        b"root:x:0:0:root:/root:/bin/sh\nbroken\n:::::\nneg:x:-1:0::/:\n\xff:x:5:6::/h:\nme:x:1000:1000:,,:/home/me:/bin/sh\n"
    )
    (tmp_path / "group").write_text("staff:x:50:\nbad:x:y:\n")
    accounts = Accounts(str(tmp_path / "passwd"), str(tmp_path / "group"))
    assert accounts.user_by_id(1000) == Account("me", 1000, 1000, "/home/me")
    assert accounts.user_by_id(7) is None
    assert (accounts.user_id("me"), accounts.user_id("77"), accounts.user_id("neg")) == (1000, 77, None)
    assert (accounts.group_id("staff"), accounts.group_id("8"), accounts.group_id("bad")) == (50, 8, None)
    assert Accounts("/no/passwd", "/no/group").users() == []
