"""Building the bundle: execd with this interpreter, its loader, and as little of the library as it needs.

It runs in any Linux image of this architecture, even an empty one, since it takes nothing from it. Build:
`python -m execd.bundle OUT`, by an interpreter of the architecture that the bundle is for. Run inside the sandbox, with
OUT mounted read-only at `BUNDLE_MOUNT`: `bundle_command()`.
Never imported by the daemon.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from execd.bundle_archive import ArchiveError, archive, probe_start
from execd.bundle_code import NoCodeError, compiled_module
from execd.bundle_paths import blind_libc, blind_loader
from execd.elf import ElfError, needed_libraries, program_interpreter, without_run_path
from execd.envs import ORIGINAL_PREFIX

__all__ = [
    "BUNDLE_MOUNT",
    "BundleError",
    "build_bundle",
    "bundle_command",
    "bundle_digest",
    "shield_loader_variables",
]

BUNDLE_MOUNT: Final = "/.sbx"
"""Where the bundle is mounted in every sandbox."""

_LOADER: Final = "lib/ld.so"
_INTERPRETER: Final = "bin/python3"
_PROGRAM: Final = "app/execd.pyc"
_ARCHIVE: Final = "app/start.bin"
_LIBC: Final = "libc.so.6"
_FOLDERS: Final = frozenset({"app", "bin", "lib"})
"""All that is at the top of a bundle."""

_LOADER_VARIABLES: Final = ("LD_", "GLIBC_TUNABLES", "MALLOC_")

_BUILD_TIME: Final = 315_532_800
"""1 January 1980, in seconds since 1970: the age of every file, so that two builds are equal to the last byte."""

# Imported by the interpreter or by execd only in some situations, so that importing the daemon does not show them.
_LATE_MODULES: Final = (
    "os", "ctypes", "encodings.ascii", "encodings.latin_1", "encodings.utf_8", "encodings.unicode_escape",
    "traceback", "linecache", "warnings", "contextlib", "concurrent.futures.thread", "_blake2",
)  # fmt: skip

_NOT_OF_THE_DAEMON: Final = ("__", "bundle", "elf", "warm")
"""Beginnings of the modules of execd that are programs, build the bundle, or are for a process without one."""

_PACKAGES: Final = ("h11", "wsproto")
"""What execd uses besides the standard library."""

_PROBE: Final = """
import importlib, json, sys
# Both would bring OpenSSL; without them `hashlib` is content with what the interpreter has.
sys.modules["ssl"] = sys.modules["_hashlib"] = None
sys.path += json.loads(sys.argv[1])
for name in ["execd.daemon", *json.loads(sys.argv[2])]:
    importlib.import_module(name)
modules = {name: module for name, module in sys.modules.items() if module and name != "__main__"}
print(json.dumps({name: getattr(module, "__file__", None) for name, module in modules.items()}))
"""


class BundleError(Exception):
    """The bundle cannot be built here; the text says why."""


def build_bundle(out: Path) -> None:
    """Build the bundle of this interpreter at `out`: a new or empty folder, or an earlier bundle, which it replaces.

    Whatever else is at `out` stays as it is. All of it is readable by everyone, whatever the umask. The same
    interpreter, libraries and sources give the same bytes, names, modes and times. Raises BundleError.
    """
    _check_place(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise BundleError(f"cannot build the execd bundle: {error}") from error
    try:
        _fill(work)
        _make_equal(work)
        _check(work)
        _put_in_place(work, out)
    except (OSError, ElfError, NoCodeError, ArchiveError, subprocess.SubprocessError) as error:
        raise BundleError(f"cannot build the execd bundle: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def bundle_digest() -> str:
    """Hex digest of all that goes into the bundle, cheap enough to ask at every start: a name for a cached build.

    A new C library or interpreter, such as a security update brings, gives a new name. Raises BundleError.
    """
    interpreter = _base_interpreter()
    try:
        loader = program_interpreter(interpreter)
        binaries = [interpreter, loader, *sorted(needed_libraries(interpreter, loader).values())]
        states = [(path, path.stat()) for path in binaries]
    except (OSError, ElfError, subprocess.SubprocessError) as error:
        raise BundleError(f"cannot look into {interpreter}: {error}") from error
    facts = [sys.version, platform.machine(), str(shutil.which("strip") is not None)]
    facts += [f"{path}:{status.st_size}:{status.st_mtime_ns}" for path, status in states]
    digest = hashlib.sha256("\0".join(facts).encode())
    folders = [Path(__file__).parent, *map(_package_folder, _PACKAGES)]
    for source in [source for folder in folders for source in _sources(folder)]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:32]


def bundle_command(mount: str = BUNDLE_MOUNT, *, args: Sequence[str] = ()) -> list[str]:
    """Give the argv that starts execd where the bundle is mounted. args: flags of execd, see `execd.options`."""
    return [
        f"{mount}/{_LOADER}",
        "--inhibit-cache",
        "--argv0",
        f"{mount}/{_INTERPRETER}",
        "--library-path",
        f"{mount}/lib",
        f"{mount}/{_INTERPRETER}",
        "-I",
        "-S",
        "-X",
        "utf8",
        f"{mount}/{_PROGRAM}",
        *args,
    ]


def shield_loader_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Give the environment to start execd with: loader settings of the image reach its commands, not execd."""
    shielded: dict[str, str] = {}
    for name, value in env.items():
        if name.startswith(_LOADER_VARIABLES):
            shielded[name] = (
                ""  # blank, since a container engine would otherwise merge the image's value in again
            )
            shielded[ORIGINAL_PREFIX + name] = value
        else:
            shielded[name] = value
    return shielded


def _sources(package: Path) -> list[Path]:
    return sorted(package.glob("*.py"))


def _fill(work: Path) -> None:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = work / "lib" / version
    extensions = library / "lib-dynload"
    for folder in (work / "bin", work / "app", extensions):
        folder.mkdir(parents=True)
    interpreter = _base_interpreter()
    shutil.copyfile(interpreter, work / _INTERPRETER)
    binaries = [interpreter]
    for name, origin in _probe(interpreter).items():
        if origin is not None and origin.endswith(tuple(EXTENSION_SUFFIXES)):
            shutil.copyfile(origin, extensions / Path(origin).name)
            binaries.append(Path(origin))
            continue
        source = Path(origin) if origin else _frozen_source(name)
        if source is not None and source.suffix == ".py":
            _write_module(name, source, library)
    start = Path(__file__).with_name("bundle_start.py")
    _write_code("__main__", start, "execd/bundle_start.py", work / _PROGRAM)
    first, second = probe_start(interpreter, _roots())
    content = archive(first, second, lambda name, source: str(_place_of(name, source)))
    (work / _ARCHIVE).write_bytes(content)
    _copy_libraries(binaries, work)
    copies = [work / _INTERPRETER, *(work / "lib").glob("*.so*"), *extensions.glob("*.so")]
    copies.remove(work / _LOADER)
    _strip(copies)
    for copy in copies:
        copy.write_bytes(without_run_path(copy.read_bytes(), copy))


def _probe(interpreter: Path) -> dict[str, str | None]:
    """Import the daemon in a bare interpreter and give the file of every module that came with it."""
    own = [path.stem for path in _sources(Path(__file__).parent)]
    late = [f"execd.{name}" for name in own if not name.startswith(_NOT_OF_THE_DAEMON)]
    lists = [json.dumps(_roots()), json.dumps([*_LATE_MODULES, *late])]
    command = [str(interpreter), "-I", "-S", "-X", "utf8", "-c", _PROBE, *lists]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={})
    if result.returncode != 0:
        raise BundleError(f"{interpreter} cannot import execd: {result.stderr.strip()[-500:]}")
    found: dict[str, str | None] = json.loads(result.stdout)
    return found


def _roots() -> list[str]:
    """Folders to import execd and its packages from."""
    folders = [Path(__file__).parent, *map(_package_folder, _PACKAGES)]
    return list(dict.fromkeys(str(folder.parent) for folder in folders))


def _base_interpreter() -> Path:
    """The interpreter itself, not the link to it in a virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable) or sys.executable).resolve()


def _package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise BundleError(f"the package {name} is not installed")
    return Path(spec.origin).parent


def _frozen_source(name: str) -> Path | None:
    """The source of a module frozen into the interpreter; None for one written in C."""
    base = Path(sysconfig.get_path("stdlib"), *name.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _place_of(name: str, source: Path) -> Path:
    """Where a module belongs in the library."""
    parts = name.split(".")
    return Path(*parts, "__init__.py") if source.name == "__init__.py" else Path(*parts).with_suffix(".py")


def _write_module(name: str, source: Path, library: Path) -> None:
    relative = _place_of(name, source)
    _write_code(name, source, str(relative), library / relative.with_suffix(".pyc"))


def _write_code(name: str, source: Path, shown: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(compiled_module(name, source, shown))


def _copy_libraries(binaries: Sequence[Path], work: Path) -> None:
    loader = program_interpreter(binaries[0])
    if "ld-linux" not in loader.name and "ld64" not in loader.name:
        raise BundleError(f"{binaries[0]} uses {loader}; only glibc's loader is supported")
    (work / _LOADER).write_bytes(blind_loader(loader.read_bytes()))
    libraries: dict[str, Path] = {}
    for binary in binaries:
        libraries |= needed_libraries(binary, loader)
    for name, path in libraries.items():
        if path != loader and name != loader.name:
            image = path.read_bytes()
            (work / "lib" / name).write_bytes(blind_libc(image) if name == _LIBC else image)


def _strip(files: Sequence[Path]) -> None:
    """Drop debug symbols where binutils is installed; without it the bundle is only larger."""
    strip = shutil.which("strip")
    if strip is not None:
        argv = [strip, "--strip-unneeded", *map(str, files)]
        subprocess.run(argv, capture_output=True, timeout=60, check=False)


def _make_equal(work: Path) -> None:
    """Give everything the same modes and times in every build; all of it is readable by everyone."""
    executables = {work / _LOADER, work / _INTERPRETER}
    for path in (work, *work.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path in executables else 0o644)
        os.utime(path, (_BUILD_TIME, _BUILD_TIME))


def _check(work: Path) -> None:
    command = bundle_command(str(work), args=["--help"])
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={})
    if result.returncode != 0:
        raise BundleError(f"the bundle does not start: {result.stderr.strip()[-500:]}")


def _check_place(out: Path) -> None:
    """Refuse a place that holds anything but a bundle: it would be lost."""
    try:
        is_free = not os.path.lexists(out) or _is_bundle(out) or _is_empty_folder(out)
    except OSError as error:
        raise BundleError(f"cannot build the execd bundle at {out}: {error.strerror}") from error
    if not is_free:
        raise BundleError(
            f"{out} is there already and is not an execd bundle: name a new or empty folder, or an earlier bundle"
        )


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not os.listdir(path)


def _is_bundle(path: Path) -> bool:
    """Whether a folder holds the files of a bundle, and nothing beside them."""
    if not path.is_dir() or path.is_symlink() or set(os.listdir(path)) != _FOLDERS:
        return False
    return all((path / name).is_file() for name in (_LOADER, _INTERPRETER, _PROGRAM))


def _put_in_place(work: Path, out: Path) -> None:
    old = work.with_name(work.name + ".old")
    # Looked at again: somebody may have put something there meanwhile. A rename replaces an empty folder by itself.
    _check_place(out)
    if _is_bundle(out):
        out.rename(old)
    try:
        work.rename(out)
    except OSError:
        # Another builder was faster; its bundle is as good.
        if not (out / _PROGRAM).is_file():
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _check_machine(wanted: str | None) -> None:
    machine = platform.machine()
    if wanted not in (None, machine):
        message = (
            f"this interpreter makes a bundle for {machine}, not {wanted}: run the command by a Python of {wanted}, "
            "on such a machine or in QEMU (docs/bundle.md)"
        )
        raise BundleError(message)


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m execd.bundle", description="Build the execd bundle.")
    parser.add_argument("out", type=Path, help="folder to build: new, empty, or an earlier bundle")
    parser.add_argument("--machine", help="refuse to build for another architecture, e.g. aarch64 or x86_64")
    arguments = parser.parse_args()
    try:
        _check_machine(arguments.machine)
        build_bundle(arguments.out.absolute())
    except BundleError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
