"""What patch(1) and git make of the same diffs."""

import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest

from services.patches import FileContent, apply_patch
from tests.support.diffs import NUMBERS, diff


def random_case(rng: Random) -> tuple[bytes, bytes, bytes]:
    """An old text, a new one, and a text that is not quite the old one, to be patched."""
    words = [b"a\n", b"b\n", b"c\n", b"d\n"]
    old = rng.choices(words, k=rng.randint(6, 25))
    new, target = list(old), list(old)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(new))
        new[at : at + rng.randint(0, 1)] = [rng.choice([b"new\n", b"a\n"])]
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(target))
        target[at : at + rng.randint(0, 1)] = rng.choices(words, k=rng.randint(1, 2))
    return b"".join(old), b"".join(new), b"".join(target)


@pytest.mark.skipif(shutil.which("patch") is None, reason="compares with patch(1), which is not installed")
def test_results_are_those_of_the_patch_program(tmp_path: Path) -> None:
    rng = Random(7)
    cases = {f"f{number}": random_case(rng) for number in range(400)}
    patch = b"".join(diff(old, new, name.encode()) for name, (old, new, _) in cases.items())
    files = {name: target for name, (_, _, target) in cases.items()}
    for name, target in files.items():
        (tmp_path / name).write_bytes(target)
    command = ["patch", "-p1", "--force", "--silent", "--fuzz=2", "--no-backup-if-mismatch"]
    subprocess.run(command, input=patch, cwd=tmp_path, check=False, capture_output=True, timeout=20)
    applied = apply_patch(patch, lambda path: FileContent(files[path]), on_reject="continue")
    mine = files | {change.path: change.content.data for change in applied.changes if change.content}
    differing = [name for name in files if mine[name] != (tmp_path / name).read_bytes()]
    assert differing == []
    rejected = {reject.file for reject in applied.rejects}
    assert rejected == {path.stem for path in tmp_path.glob("*.rej")}
    assert 20 < len(rejected) < 380


OLD_TREE = {
    "kept.py": NUMBERS,
    "gone.py": b"x\ny\n",
    "sub dir/old name.py": NUMBERS,
    'caf\u00e9 "q".py': b"1\n2\n",
    "swap1": b"".join(b"one %d\n" % i for i in range(20)),
    "swap2": b"".join(b"two %d\n" % i for i in range(20)),
    "latin.txt": b"\xe9t\xe9\n",
    "empty": b"",
    "dos.txt": b"a\r\nb\r\nc",
}
NEW_TREE = {
    "kept.py": NUMBERS.replace(b"line 3\n", b"").replace(b"line 28\n", b"28\n29a\n"),
    "sub dir/new name.py": NUMBERS.replace(b"line 9\n", b"nine\n"),
    'caf\u00e9 "q".py': b"1\n3",
    "swap1": OLD_TREE["swap2"],
    "swap2": OLD_TREE["swap1"].replace(b"one 7\n", b"seven\n"),
    "latin.txt": b"\xe9t\xe9s\n",
    "dos.txt": b"a\r\nB\r\nc\r\n",
    "new.py": b"print()\n",
    "empty too": b"",
    "copy.py": NUMBERS + b"more\n",
}


def git(folder: Path, *arguments: str) -> bytes:
    command = ["git", "-c", "core.autocrlf=false", "-c", "core.fileMode=true", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=20).stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="makes its diff with git, which is not installed")
def test_diff_of_two_trees_by_git_is_applied(tmp_path: Path) -> None:
    trees = []
    git(tmp_path, "init", "--quiet")
    for tree in (OLD_TREE, NEW_TREE):
        for old in tmp_path.rglob("*"):
            if old.is_file() and ".git" not in old.parts:
                old.unlink()
        for name, data in tree.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o755 if tree is NEW_TREE and name in {"new.py", "kept.py"} else 0o644)
        git(tmp_path, "add", "--all")
        trees.append(git(tmp_path, "write-tree").decode().strip())
    made = git(tmp_path, "diff", "-B", "-M", "-C", "--find-copies-harder", *trees)
    assert b"rename from" in made
    assert b"copy from" in made

    def read(path: str) -> FileContent | None:
        return FileContent(OLD_TREE[path]) if path in OLD_TREE else None

    changes = {change.path: change.content for change in apply_patch(made, read).changes}
    merged = OLD_TREE | {path: content.data for path, content in changes.items() if content}
    assert {path: data for path, data in merged.items() if changes.get(path, data) is not None} == NEW_TREE
    modes = {path: content.mode for path, content in changes.items() if content}
    assert sorted(path for path, mode in modes.items() if mode == 0o755) == ["kept.py", "new.py"]
