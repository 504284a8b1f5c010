"""What nodes say they can do, as labels of theirs: by these a create is refused at once, or placed where it can start.

A label `sandmill/can/RUNTIME` says that the node tells; those below it, what it can do. A node of an earlier release
tells nothing, so nothing is refused for it, and nothing is asked of it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from runtimes.base import Capabilities
from services.sandbox_errors import WireInvalidError
from services.session_spec import SessionSpec

__all__ = ["asks_for_capabilities", "labels_asked", "labels_of_capabilities", "may_make_snapshots", "told_of"]

Labels = Mapping[str, str]

_YES = "yes"


@dataclass(frozen=True, slots=True)
class _Ask:
    """One thing that not every node has. place: below which its labels are; fits: which of the names there will do.

    refusal: made from the names that there are.
    """

    field: str
    code: str
    place: str
    fits: Callable[[str], bool]
    refusal: Callable[[Sequence[str]], str]


def labels_of_capabilities(runtime: str, capabilities: Capabilities) -> dict[str, str]:
    """Give the labels by which a node says what one of its runtimes can do."""
    tails = ["", *([_SNAPSHOTS] if capabilities.makes_snapshots else [])]
    tails += [f"{_OCI_RUNTIME}{name}" for name in sorted(capabilities.oci_runtimes)]
    tails += [f"{_HOST_PATH}{PurePosixPath(path)}" for path in sorted(capabilities.host_paths)]
    return {_top(runtime) + tail: _YES for tail in tails}


def told_of(node: Labels, runtime: str) -> dict[str, str]:
    """Give those of a node's labels that say what it can do with a runtime."""
    top = _top(runtime)
    return {name: value for name, value in node.items() if name == top or name.startswith(f"{top}/")}


def may_make_snapshots(node: Labels, runtime: str) -> bool:
    """Whether a node with these labels can make snapshots, or does not tell."""
    return _top(runtime) not in node or _top(runtime) + _SNAPSHOTS in node


def asks_for_capabilities(spec: SessionSpec) -> bool:
    """Whether a sandbox wants anything that not every node of its runtime has."""
    return spec.oci_runtime is not None or any(volume.host_path is not None for volume in spec.volumes)


def labels_asked(
    spec: SessionSpec,
    runtime: str,
    nodes: Sequence[Labels],
    *,
    others: Labels,
    too_small: Sequence[Labels] = (),
) -> Labels:
    """Give the labels a node must have so that a sandbox can start there. Pure.

    nodes: labels of those that offer the runtime, take work now and are large enough. too_small: of those that are not.
    others: labels that its node must have besides.
    Raises WireInvalidError that names the field if none of the nodes has what is asked for, or none has all of it.
    """
    everywhere = [*nodes, *too_small]
    if any(_top(runtime) not in node for node in everywhere):
        return {}
    left = [node for node in nodes if others.items() <= node.items()]
    if not left:
        return {}  # the one that it is bound to, or that is large enough, is away, and nobody knows what it can do
    chosen: dict[str, str] = {}
    for ask in _asks_of(spec, runtime):
        names = Counter(name for node in everywhere for name in _names_below(node, ask.place))
        if not any(ask.fits(name) for name in names):
            raise WireInvalidError(ask.code, ask.refusal(sorted(names)), field=ask.field)
        names = Counter(name for node in left for name in _names_below(node, ask.place) if ask.fits(name))
        if not names:
            message = (
                f"cannot be had together with the rest: no node that offers {runtime} and takes work now has all of "
                "it; leave it out, or ask for it in another sandbox"
            )
            raise WireInvalidError(ask.code, message, field=ask.field)
        # Of folders within each other, the one that most nodes have.
        label = ask.place + names.most_common(1)[0][0]
        chosen[label] = _YES
        left = [node for node in left if label in node]
    return chosen


_SNAPSHOTS, _OCI_RUNTIME, _HOST_PATH = "/snapshots", "/oci-runtime/", "/host-path"


def _top(runtime: str) -> str:
    return f"sandmill/can/{runtime}"


def _names_below(node: Labels, place: str) -> list[str]:
    return [label.removeprefix(place) for label in node if label.startswith(place)]


def _asks_of(spec: SessionSpec, runtime: str) -> list[_Ask]:
    asks = []
    if spec.oci_runtime is not None:
        asks.append(_ask_for_oci_runtime(spec.oci_runtime, runtime))
    for number, volume in enumerate(spec.volumes):
        if volume.host_path is not None:
            asks.append(_ask_for_host_path(volume.host_path, runtime, field=f"volumes[{number}].host.path"))
    return asks


def _ask_for_oci_runtime(wanted: str, runtime: str) -> _Ask:
    def refusal(names: Sequence[str]) -> str:
        there = f"there are {', '.join(names)}" if names else "there are none"
        return f"is {wanted}, which no node that offers {runtime} and takes work now has; {there}"

    return _Ask(
        "extensions.sandmill.oci-runtime",
        "SANDBOX::INVALID_PARAMETER",
        _top(runtime) + _OCI_RUNTIME,
        wanted.__eq__,
        refusal,
    )


def _ask_for_host_path(wanted: str, runtime: str, *, field: str) -> _Ask:
    path = PurePosixPath(wanted)

    def refusal(names: Sequence[str]) -> str:
        there = (
            f"there are {', '.join(names)}"
            if names
            else "there are none: an operator names them by SANDMILL_DOCKER_ALLOWED_HOST_PATHS"
        )
        return f"is {wanted}, in no folder that a node which takes work now lets sandboxes see; {there}"

    return _Ask(
        field, "VOLUME::HOST_PATH_NOT_ALLOWED", _top(runtime) + _HOST_PATH, path.is_relative_to, refusal
    )
