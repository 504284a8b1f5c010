"""How the bundle starts: nearly all modules of a start come from one file, with what they would compile in turn.

Most of a start would otherwise be the search for two hundred files, and the compiling of regular expressions and of
the methods of data classes. `execd.bundle_archive` makes that file. What is not in it comes from files of its own, as
in any interpreter.
"""

import gc

gc.disable()  # nearly all that is made from here on stays

# No modules but those that every interpreter has before its first line: each of the others would be searched for.
import builtins  # noqa: E402
import marshal  # noqa: E402
import posix  # noqa: E402
import sys  # noqa: E402
from _frozen_importlib import ModuleSpec  # noqa: E402
from _frozen_importlib import _load as _load_spec  # type: ignore[attr-defined]  # noqa: E402
from _frozen_importlib_external import ExtensionFileLoader, PathFinder  # noqa: E402
from _imp import extension_suffixes  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType, ModuleType
    from typing import Any, TypeAlias

    Modules: TypeAlias = dict[str, tuple[bool, CodeType]]
    LateModules: TypeAlias = Mapping[str, tuple[bool, tuple[tuple[str, Any], ...]]]

__all__ = ["Start", "listening", "main", "read_parts"]

_ARCHIVE = "/start.bin"
_PARTS, _SIZE_BYTES = 3, 4
"""Of the archive: the size of each, then each."""

_BACKLOG = 512
"""As of `execd.daemon`."""

_COMPILERS = {"collections": "eval", "dataclasses": "exec"}
"""Modules that write code and compile it, and the built-in that they do it by."""

_IS_COROUTINE = 0x80
"""CO_COROUTINE among the flags of code."""


class Start:
    """Finds and loads modules, as the first on `sys.meta_path`; what it does not have is left to the next there."""

    def __init__(self, library: str, late: "LateModules") -> None:
        """library: folder of the modules' own files.

        late: modules that are loaded when something of them is used beyond the values given here; whether each is a
        package. An ellipsis stands for a function that is loaded when it is called.
        """
        self._library = library
        self._late = late
        self._modules: Modules = {}
        self._extensions: dict[str, str] = {}
        self._texts: dict[tuple[str, str], CodeType] = {}
        self._patterns: dict[tuple[str | bytes, int], tuple[Any, ...]] = {}
        self._names_to_come: frozenset[str] = frozenset()
        self._part_to_come = b""

    def add(self, part: bytes) -> None:
        """Take a part of the archive: four tables as pairs of key and value, in the marshal format.

        Names to whether a module is a package, and its code; names to file names of extensions in `lib-dynload`;
        built-in and text to compiled code; expression and flags to what `_sre.compile` takes.
        """
        modules, extensions, texts, patterns = marshal.loads(part)  # noqa: S302  # read-only, and our own
        self._modules.update(modules)
        self._extensions.update(extensions)
        self._texts.update(texts)
        self._patterns.update(patterns)

    def add_later(self, names: "Sequence[str]", part: bytes) -> None:
        """Take a part when the first of its modules is asked for."""
        self._names_to_come = frozenset(names)
        self._part_to_come = part

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Give the spec of a module that is here."""
        del path, target
        late = self._late.get(name)
        if late is None:
            self._take_part_with(name)
        extension = self._extensions.get(name)
        if extension is not None:
            file = f"{self._library}/lib-dynload/{extension}"
            return ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)
        found = late or self._modules.get(name)
        if found is None:
            return None
        spec = ModuleSpec(name, self, is_package=found[0])  # type: ignore[arg-type]  # it has the methods that count
        if found[0]:
            # Where the package's other modules are.
            spec.submodule_search_locations = [f"{self._library}/{name.replace('.', '/')}"]
        return spec

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        """Have the interpreter make it."""

    def exec_module(self, module: "ModuleType") -> None:
        """Run the code of a module; only note the values of one that is late."""
        late = self._late.get(module.__name__)
        if late is None:
            self._run(module)
            return
        module.__class__ = _LateModule
        for name, value in late[1]:
            setattr(module, name, _late_function(module, name) if value is ... else value)

    def load(self, module: "ModuleType") -> None:
        """Run the code of a late module now."""
        name = module.__name__
        module.__class__ = _LateModule.__base__
        self._take_part_with(name)
        if name in self._modules:
            self._run(module)
            return
        parent = name.rpartition(".")[0]
        spec = PathFinder.find_spec(name, sys.modules[parent].__path__ if parent else None)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
        spec.loader.exec_module(module)

    def _take_part_with(self, name: str) -> None:
        if name in self._names_to_come:
            part, self._part_to_come, self._names_to_come = self._part_to_come, b"", frozenset()
            self.add(part)

    def _run(self, module: "ModuleType") -> None:
        code = self._modules.pop(module.__name__)[1]
        self.prepare(module)
        exec(code, module.__dict__)  # noqa: S102  # loading is just this
        self.complete(module)

    def prepare(self, module: "ModuleType") -> None:
        """Before its code runs: have it find what it would compile."""
        built_in = _COMPILERS.get(module.__name__)
        if built_in is not None:
            setattr(module, built_in, self._runs_text(built_in))

    def complete(self, module: "ModuleType") -> None:
        """After its code has run: have it find what it would compile, and do without module `inspect`."""
        if module.__name__ == "re._compiler":
            names = module.__dict__
            names["compile"] = self._compiles_pattern(names["compile"])
        if module.__name__ in ("asyncio.coroutines", "dataclasses"):
            names = module.__dict__
            names["inspect"] = _QuickInspect(names["inspect"])

    def _runs_text(self, built_in: str) -> "Callable[..., Any]":
        run = getattr(builtins, built_in)

        def run_text(text: str, *scopes: "Any") -> "Any":
            return run(self._texts.get((built_in, text), text), *scopes)

        return run_text

    def _compiles_pattern(
        self, otherwise: "Callable[..., re.Pattern[Any]]"
    ) -> "Callable[..., re.Pattern[Any]]":
        make = __import__("_sre").compile

        def compile_pattern(pattern: "Any", flags: int = 0) -> "re.Pattern[Any]":
            known = self._patterns.pop((pattern, int(flags)), None)
            if known is None:
                return otherwise(pattern, flags)
            final_flags, code, groups, names, indexes = known
            numbers = list(memoryview(code).cast("I"))
            compiled: re.Pattern[Any] = make(pattern, final_flags, numbers, groups, dict(names), indexes)
            return compiled

        return compile_pattern


class _LateModule(type(sys)):  # type: ignore[misc]  # `ModuleType`, without loading `types`
    """A module that is loaded when the first thing of it is asked for."""

    def __getattr__(self, name: str) -> "Any":
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)  # asked for by the import system itself
        _load(self)
        return getattr(self, name)


def _load(module: "ModuleType") -> None:
    start: Any = module.__loader__
    start.load(module)


def _late_function(module: "ModuleType", name: str) -> "Callable[..., Any]":
    def call(*arguments: "Any", **keywords: "Any") -> "Any":
        if getattr(module, name) is call:
            _load(module)
        return getattr(module, name)(*arguments, **keywords)

    return call


class _QuickInspect:
    """Module `inspect` for those who ask it only two things; loading it takes a tenth of the start."""

    def __init__(self, module: "ModuleType") -> None:
        self._module = module

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._module, name)

    @staticmethod
    def signature(described: "Any") -> str:
        """Give what stands for the list of fields, in the docstring of a data class that has none."""
        del described
        return "(...)"

    def iscoroutinefunction(self, function: "Any") -> bool:
        """Say whether calling it gives a coroutine; at once for functions and methods."""
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is None:
            return bool(self._module.iscoroutinefunction(function))
        return bool(code.co_flags & _IS_COROUTINE)


def read_parts(archive: str) -> "list[bytes]":
    """Give the parts of an archive. Apart, since marshal copies what is within another thing."""
    fd = posix.open(archive, posix.O_RDONLY | posix.O_CLOEXEC)
    sizes = [int.from_bytes(posix.read(fd, _SIZE_BYTES), "little") for _ in range(_PARTS)]
    parts = [posix.read(fd, size) for size in sizes]
    posix.close(fd)
    return parts


def listening(arguments: "Sequence[str]", library: str) -> "list[str]":
    """Begin to listen before the rest is loaded, and take execd's name, by which others see that.

    Requests then wait until it is loaded, instead of being made again and again. Gives the arguments with the socket in
    the place of the address. Those that name none, or begin with something else, stay as they are; and so do those that
    cannot be listened at: that is told by who reads all of them. library: as of `Start`.
    """
    if len(arguments) < 4 or (arguments[0], arguments[2]) != ("--host", "--port"):
        return list(arguments)
    try:
        _socket = _socket_module(library)
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM, _socket.IPPROTO_TCP)
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        listener.bind((arguments[1], int(arguments[3])))
        listener.listen(_BACKLOG)
    except (ImportError, OSError, ValueError, OverflowError):
        return list(arguments)
    try:
        name = posix.open("/proc/self/comm", posix.O_WRONLY | posix.O_CLOEXEC)
        posix.write(name, b"execd")
        posix.close(name)
    except OSError:
        pass  # gVisor has no such file: who waits has to ask
    return ["--listen-fd", str(listener.detach()), *arguments[4:]]


def _socket_module(library: str) -> "Any":
    """Give what module `socket` is made of, before there is an archive to find it in."""
    if "_socket" not in sys.builtin_module_names:
        file = f"{library}/lib-dynload/_socket{extension_suffixes()[0]}"
        return _load_spec(ModuleSpec("_socket", ExtensionFileLoader("_socket", file), origin=file))
    import _socket  # noqa: PLC0415  # type: ignore[import-not-found]

    return _socket


def main(program: str) -> int:
    """Run execd. program: the path of this file in the bundle. Returns the exit code."""
    folder = program.rpartition("/")[0]
    library = f"{folder}/../lib/python{sys.version_info[0]}.{sys.version_info[1]}"
    arguments = listening(sys.argv[1:], library)
    head, first, to_come = read_parts(folder + _ARCHIVE)
    late, names_to_come = marshal.loads(head)  # noqa: S302  # read-only, and our own
    start = Start(library, dict(late))
    start.add(first)
    start.add_later(names_to_come, to_come)
    sys.meta_path.insert(0, start)
    # Without it asyncio starts faster and smaller; execd speaks no TLS.
    sys.modules["ssl"] = None  # type: ignore[assignment]  # None means "cannot be imported"
    from execd.daemon import main as serve  # noqa: PLC0415  # from the archive

    # Or the first collection would look through all of it.
    gc.freeze()
    gc.enable()
    return serve(arguments)


if __name__ == "__main__":
    sys.exit(main(__file__))
