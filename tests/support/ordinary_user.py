"""Running part of the tests as a user without privileges, from tests that run as root.

The interpreter, the packages and this repository may lie below a folder that only root may enter. A private mount
namespace shows them to the other user at their own paths, so nothing on the machine is changed or copied.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["ORDINARY_UID", "run_as_ordinary_user"]

ORDINARY_UID = 61_234
"""No account has it; what the kernel knows of a user is the number."""

_REPOSITORY = Path(__file__).resolve().parents[2]

# Over each closed ancestor goes a small file system that anyone may enter and that shows just the folders needed.
_EXPOSE = r"""
set -e
uid=$1; shift
mount --make-rprivate /
for ancestor in $CLOSED; do
  cover=$(mktemp -d)
  mount -t tmpfs -o mode=0755 tmpfs "$cover"
  for folder in $FOLDERS; do
    case $folder in
      "$ancestor"/*) mkdir -p "$cover/${folder#$ancestor/}"; mount --rbind "$folder" "$cover/${folder#$ancestor/}" ;;
    esac
  done
  mount --rbind "$cover" "$ancestor"
done
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --inh-caps=-all --bounding-set=-all "$@"
"""


def run_as_ordinary_user(
    argv: Sequence[str],
    folder: Path,
    *,
    timeout_seconds: float,
    uid: int = ORDINARY_UID,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with argv as another user. folder: made, given to that user, becomes HOME and TMPDIR.

    uid: of an account where the program needs one, as PostgreSQL does.
    """
    folder.mkdir()
    os.chown(folder, uid, uid)
    needed = _outermost([sys.base_prefix, sys.prefix, str(_REPOSITORY), str(folder)])
    closed = {str(parent) for path in needed for parent in Path(path).parents if not _is_open(parent)}
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", _EXPOSE, "sh", str(uid), sys.executable, *argv],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "FOLDERS": " ".join(needed),
            "CLOSED": " ".join(_outermost(sorted(closed))),
            **environment,
        },
        cwd=_REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
    )


def _outermost(paths: Sequence[str]) -> list[str]:
    """Leave out paths inside others."""
    unique = sorted({str(Path(path).resolve()) for path in paths})
    return [path for path in unique if not any(path.startswith(other + "/") for other in unique)]


def _is_open(folder: Path) -> bool:
    return bool(folder.stat().st_mode & 0o001)
