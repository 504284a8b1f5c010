"""Which numbers an image's USER stands for."""

from contextlib import suppress

from core.errors import BadImageError
from runtimes.local.images.limits import MAX_ID

__all__ = ["resolve_user"]


def resolve_user(user: str, passwd: bytes | None, group: bytes | None) -> tuple[int, int]:
    """Give (uid, gid) of `name`, `uid`, `name:group` or `uid:gid`; empty is root.

    passwd, group: the image's own files, None where it has none. A number needs no entry; without one its group is
    the same number, since group 0 owns nothing a user needs. Raises BadImageError for a name that is not there and
    for numbers beyond those that sandboxes have.
    """
    name, _, group_name = user.partition(":")
    entry = _find(passwd, name or "0", user)
    uid = _number(name or "0", entry, kind="user", user=user)
    if group_name:
        return uid, _number(group_name, _find(group, group_name, user), kind="group", user=user)
    if entry is None:
        return uid, uid
    with suppress(ValueError, IndexError):
        return uid, _checked(int(entry[3]), "group", user)
    raise BadImageError(f"the image's user {user!r} has no group in its /etc/passwd")


def _number(name: str, entry: list[str] | None, *, kind: str, user: str) -> int:
    if _is_number(name):
        return _checked(int(name), kind, user)
    if entry is not None:
        with suppress(ValueError, IndexError):
            return _checked(int(entry[2]), kind, user)
    file = "/etc/passwd" if kind == "user" else "/etc/group"
    raise BadImageError(f"the image's {kind} {name!r} (user {user!r}) is not in its {file}")


def _find(table: bytes | None, name: str, user: str) -> list[str] | None:
    """Find the entry of a name, or of a number, in passwd(5) or group(5)."""
    if _is_number(name) and len(name) > len(str(MAX_ID)) + 1:
        _checked(MAX_ID + 1, "user or group", user)
    column = 2 if _is_number(name) else 0
    for line in (table or b"").decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) > column and fields[column] == (str(int(name)) if column else name):
            return fields
    return None


def _checked(number: int, kind: str, user: str) -> int:
    if not 0 <= number <= MAX_ID:
        raise BadImageError(
            f"the image's user {user!r}: its {kind} id is not from 0 to {MAX_ID}, which sandboxes have"
        )
    return number


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
