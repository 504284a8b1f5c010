import pytest

from core.errors import BadImageError
from runtimes.local.images import resolve_user

PASSWD = b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/:/bin/sh\nbroken\nhuge:x:70000:70000::/:/bin/sh\nnone:x:5\n"
GROUP = b"root:x:0:\nstaff:x:50:app\nhuge:x:70000:\n"


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("", (0, 0)),
        ("0", (0, 0)),
        ("root", (0, 0)),
        ("app", (1000, 1001)),
        ("1000", (1000, 1001)),
        ("01000", (1000, 1001)),
        ("1000:1000", (1000, 1000)),
        ("app:staff", (1000, 50)),
        ("app:7", (1000, 7)),
        ("4242", (4242, 4242)),
        ("65535:65535", (65535, 65535)),
    ],
)
def test_user_is_resolved_by_the_files_of_the_image(user, expected):
    assert resolve_user(user, PASSWD, GROUP) == expected


def test_number_needs_no_files():
    assert resolve_user("1000", None, None) == (1000, 1000)
    assert resolve_user("", None, None) == (0, 0)


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("ghost", "user 'ghost'.*not in its /etc/passwd"),
        ("app:ghost", "group 'ghost'.*not in its /etc/group"),
        ("65536", "not from 0 to 65535"),
        ("1:65536", "not from 0 to 65535"),
        ("huge", "not from 0 to 65535"),
        ("app:huge", "not from 0 to 65535"),
        ("9" * 5000, "not from 0 to 65535"),
        ("-1", "not in its /etc/passwd"),
        ("²", "not in its /etc/passwd"),
        ("none", "no group"),
        ("broken", "not in its /etc/passwd"),
    ],
)
def test_user_that_no_sandbox_can_have_is_refused(user, reason):
    with pytest.raises(BadImageError, match=reason):
        resolve_user(user, PASSWD, GROUP)
