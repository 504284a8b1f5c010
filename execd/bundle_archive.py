"""The file that the bundle starts from: the modules that a start needs, compiled, and what they compile in turn.

Which these are is found out by starting execd and asking for a sign of life; a second part has what commands need.
Never imported by the daemon.
"""

import marshal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any, Final

from execd.bundle_code import marshalled, module_code_without_docstrings

__all__ = ["ArchiveError", "Part", "archive", "probe_start"]

_LATE: Final[Mapping[str, Sequence[str]]] = {
    "ast": (),
    "asyncio.sslproto": (),
    "asyncio.staggered": (),
    "concurrent.futures": ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"),
    "dis": (),
    "inspect": (),
    "linecache": (),
    "locale": (),
    "re._parser": ("TYPE_FLAGS",),
    "subprocess": ("DEVNULL", "PIPE", "STDOUT"),
    "textwrap": (),
    "tokenize": (),
    "traceback": ("extract_stack",),
}
"""Modules that the library imports with others and that a start does not use, but for these values of them.

A function among the values is one that is loaded when it is called.
"""

_SIZE_BYTES: Final = 4
"""As `execd.bundle_start` reads them; importing that one switches the collector off."""

_COMMAND_MODULES: Final = ("execd.command_routes", "execd.execution_routes", "execd.session_routes")
"""With all that they import, what the first command needs."""

_PROBE: Final = """
import marshal, sys
before = set(sys.modules)
sys.modules["ssl"] = sys.modules["_hashlib"] = None
roots, late, second = marshal.loads(bytes.fromhex(sys.argv[1]))
sys.path += roots
from execd.bundle_start import Start
texts, patterns = {}, {}

class Texts:
    def get(self, key, default=None):
        texts[key] = None
        return default

class Recorder(Start):
    # Has late modules only; all others are found by the next finder, and are prepared here.
    def __init__(self):
        super().__init__("", late)
        self._texts = Texts()
    def find_spec(self, name, path=None, target=None):
        spec = super().find_spec(name)
        if spec is None:
            for finder in sys.meta_path[1:]:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self.watch(spec)
                    return spec
        return spec
    def watch(self, spec):
        loader = spec.loader
        class Loader:
            create_module = loader.create_module
            @staticmethod
            def exec_module(module):
                module.__loader__ = loader
                self.prepare(module)
                loader.exec_module(module)
                self.complete(module)
        if type(loader).__name__ == "SourceFileLoader":
            spec.loader = Loader
    def complete(self, module):
        if module.__name__ == "re._compiler":
            record(module)
        else:
            super().complete(module)

def record(module):
    compiling, sre, seen = module.compile, module._sre, []
    class Sre:
        def __getattr__(self, name):
            return getattr(sre, name)
        def compile(self, pattern, flags, code, groups, names, indexes):
            seen[:] = [int(flags), [int(number) for number in code], groups, dict(names), tuple(indexes)]
            return sre.compile(pattern, flags, code, groups, names, indexes)
    module._sre = Sre()
    def compile(pattern, flags=0):
        compiled = compiling(pattern, flags)
        if isinstance(pattern, (str, bytes)):
            patterns[pattern, int(flags)] = list(seen)
        return compiled
    module.compile = compile

def answer_once():
    import os, signal
    from _socket import socket, AF_INET, SOCK_STREAM
    listener, client = socket(AF_INET, SOCK_STREAM), socket(AF_INET, SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    daemon, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            client.connect(listener.getsockname())
            client.send(b"GET /ping HTTP/1.1\\r\\nHost: execd\\r\\n\\r\\n")
            client.recv(4096)
            os.kill(daemon, signal.SIGUSR1)
        finally:
            os.kill(daemon, signal.SIGTERM)
            os._exit(0)
    client.close()
    # Python looks at signals by number: before the end, for which more is needed.
    signal.signal(signal.SIGUSR1, lambda *_: parts.append(take_part()))
    from execd import daemon
    daemon.PREPARE_AFTER_SECONDS = 3600
    if daemon.main(["--listen-fd", str(listener.detach())]) != 0:
        sys.exit("execd does not start")

def take_part():
    modules, extensions = [], []
    for name in set(sys.modules) - before:
        module = sys.modules[name]
        kind = type(getattr(module, "__loader__", None)).__name__
        if kind == "SourceFileLoader":
            modules.append((name, module.__file__))
        elif kind == "ExtensionFileLoader":
            extensions.append((name, module.__file__))
        else:
            continue
        before.add(name)
    part = (modules, extensions, list(texts), list(patterns.items()))
    texts.clear()
    patterns.clear()
    return part

parts = []
# The second is needed for what is recorded here and will then be known.
before.update(("execd.bundle_start", "re._parser"))
sys.meta_path.insert(0, Recorder())
answer_once()
for name in second:
    __import__(name)
parts.append(take_part())
sys.stdout.buffer.write(marshal.dumps(parts))
"""


class ArchiveError(Exception):
    """It could not be found out what a start needs; the text says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is loaded together. modules, extensions: names to files. texts: built-in and text.

    patterns: expression and flags, and what the compiler of regular expressions made of them.
    """

    modules: Mapping[str, Path]
    extensions: Mapping[str, Path]
    texts: Sequence[tuple[str, str]]
    patterns: Sequence[tuple[tuple[str | bytes, int], Sequence[Any]]]


def probe_start(interpreter: Path, roots: Sequence[str]) -> tuple[Part, Part]:
    """Run execd in a bare interpreter of this version until it has answered once, then load what commands need.

    roots: to import from. Gives what each of the two needed. Raises ArchiveError.
    """
    arguments = marshal.dumps((list(roots), _late_modules(), _COMMAND_MODULES)).hex()
    command = [str(interpreter), "-I", "-S", "-X", "utf8", "-c", _PROBE, arguments]
    result = subprocess.run(command, capture_output=True, timeout=60, check=False, env={})
    if result.returncode != 0:
        raise ArchiveError(f"{interpreter} cannot start execd: {result.stderr.decode().strip()[-500:]}")
    first, second = marshal.loads(result.stdout)  # noqa: S302  # our own probe's
    return _part(*first), _part(*second)


def archive(first: Part, second: Part, shown: Callable[[str, Path], str]) -> bytes:
    """Give the content of the file. shown: the file name in tracebacks. Raises NoCodeError."""
    late = tuple((name, fact) for name, fact in sorted(_late_modules().items()) if name not in first.modules)
    to_come = (*second.modules, *second.extensions)
    parts = (marshalled((late, to_come)), _tables(first, shown), _tables(second, shown))
    return b"".join([*(len(part).to_bytes(_SIZE_BYTES, "little") for part in parts), *parts])


def _part(
    modules: Sequence[tuple[str, str]],
    extensions: Sequence[tuple[str, str]],
    texts: Sequence[tuple[str, str]],
    patterns: Sequence[tuple[tuple[str | bytes, int], Sequence[Any]]],
) -> Part:
    """In an order that is the same in every build."""
    return Part(
        {name: Path(file) for name, file in sorted(modules)},
        {name: Path(file) for name, file in sorted(extensions)},
        sorted(texts),
        sorted(patterns, key=repr),
    )


def _tables(part: Part, shown: Callable[[str, Path], str]) -> bytes:
    """Give a part as `execd.bundle_start.Start.add` takes it."""
    modules = tuple(
        (name, (source.name == "__init__.py", module_code_without_docstrings(source, shown(name, source))))
        for name, source in part.modules.items()
    )
    extensions = tuple((name, file.name) for name, file in part.extensions.items())
    texts = tuple(((built_in, text), _compiled(built_in, text)) for built_in, text in part.texts)
    patterns = tuple((key, _flat(made)) for key, made in part.patterns)
    return marshalled((modules, extensions, texts, patterns))


def _late_modules() -> dict[str, tuple[bool, tuple[tuple[str, Any], ...]]]:
    """Whether each is a package, and the values that are known of it before it is loaded."""
    found = {}
    for name, values in _LATE.items():
        spec = find_spec(name)
        if spec is not None:
            module = import_module(name)
            known = tuple((value, _known(getattr(module, value))) for value in values)
            found[name] = (spec.submodule_search_locations is not None, known)
    return found


def _known(value: Any) -> Any:
    """Give a constant, or the sign for a function."""
    return ... if callable(value) else value


def _compiled(built_in: str, text: str) -> CodeType:
    return compile(text, "<string>", built_in, dont_inherit=True)


def _flat(made: Sequence[Any]) -> tuple[Any, ...]:
    """Give the numbers of the code as bytes, which load at once."""
    flags, code, groups, names, indexes = made
    numbers = b"".join(int(number).to_bytes(4, sys.byteorder) for number in code)
    return (flags, numbers, groups, tuple(names.items()), tuple(indexes))
