"""What a live sandbox asks for that no node could give it: refused at once and by name, not after a failed start."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sqlalchemy import Connection

from repositories.nodes import NodeReadRepository, RuntimeOffer
from runtimes.base import LACKS
from services.node_capabilities import asks_for_capabilities, labels_asked
from services.sandbox_errors import WireInvalidError
from services.session_spec import SessionSpec

__all__ = ["PLATFORM_LABEL", "Reserved", "capability_labels", "labels_needed"]

PLATFORM_LABEL = "sandmill/platform"
"""Every node has this label, e.g. `linux/amd64`; what is only for one platform asks for it."""

_NO_LABELS: Mapping[str, str] = MappingProxyType({})

_SMALL_CPU_MILLICORES, _SMALL_MEMORY_BYTES = 1000, 1 << 30
"""So much nearly every node has; whether it does is not asked at each create."""

_INVALID = "SANDBOX::INVALID_PARAMETER"


@dataclass(frozen=True, slots=True)
class Reserved:
    """What a sandbox holds back on its node, which is less than its limits."""

    cpu_millicores: int
    memory_bytes: int


def labels_needed(
    connection: Connection,
    spec: SessionSpec,
    runtime: str,
    *,
    is_named: bool,
    reserved: Reserved,
    others: Mapping[str, str] = _NO_LABELS,
) -> Mapping[str, str]:
    """Give the labels that a node must have for what a sandbox asks for.

    is_named: it asks for the runtime, too. others: labels that its node must have anyway.
    Raises WireInvalidError if it asks for what the runtime lacks, or for a runtime, a platform or GPUs that none of the
    nodes has that this installation has ever had, or would reserve more cpu or memory than the largest of them has, or
    for an OCI runtime or folders that none of those has which take work now.
    Before the first of them nothing is known, and nothing refused; no size, OCI runtime or folder is while none of them
    is there.
    """
    _refuse_what_it_lacks(spec, runtime)
    needs_capabilities = asks_for_capabilities(spec)
    is_small = (
        reserved.cpu_millicores <= _SMALL_CPU_MILLICORES and reserved.memory_bytes <= _SMALL_MEMORY_BYTES
    )
    is_usual = spec.platform is None and not spec.resources.gpu and is_small and not needs_capabilities
    if not is_named and is_usual:
        return {}  # what nearly all are: they cost no statement
    nodes = NodeReadRepository(connection)
    offers = nodes.offers(label=PLATFORM_LABEL)
    if not offers:
        return {}
    offer = offers.get(runtime)
    if offer is None:
        message = f"is {runtime}, which no node offers; there are {', '.join(sorted(offers))}"
        raise WireInvalidError(_INVALID, message, field="extensions.sandmill.runtime")
    if spec.resources.gpu > offer.gpu:
        message = f"is {spec.resources.gpu}; no node that offers {runtime} has more than {offer.gpu}"
        raise WireInvalidError(_INVALID, message, field="resourceLimits.gpu")
    if offer.is_there:
        _refuse_too_large(reserved, runtime, offer)
    labels = {} if spec.platform is None else _platform_label(spec.platform, runtime, offer)
    if not needs_capabilities:
        return labels
    return {
        **labels,
        **capability_labels(nodes, spec, runtime, reserved=reserved, others={**others, **labels}),
    }


def capability_labels(
    nodes: NodeReadRepository,
    spec: SessionSpec,
    runtime: str,
    *,
    reserved: Reserved,
    others: Mapping[str, str],
) -> Mapping[str, str]:
    """Give the labels by which a node says that it can do what a sandbox asks for. Raises WireInvalidError."""
    large, small = nodes.labels(
        runtime,
        cpu_millicores=reserved.cpu_millicores,
        memory_bytes=reserved.memory_bytes,
        gpu=max(0, spec.resources.gpu),
    )
    return labels_asked(spec, runtime, large, others=others, too_small=small)


def _refuse_too_large(reserved: Reserved, runtime: str, offer: RuntimeOffer) -> None:
    sizes = {
        "cpu": (reserved.cpu_millicores, offer.cpu_millicores, "m"),
        "memory": (reserved.memory_bytes >> 20, offer.memory_bytes >> 20, "Mi"),
    }
    for name, (wanted, most, unit) in sizes.items():
        if wanted > most:
            message = (
                f"is so much that {wanted}{unit} would be reserved; no node that offers {runtime} has more than "
                f"{most}{unit}"
            )
            raise WireInvalidError(_INVALID, message, field=f"resourceLimits.{name}")


def _refuse_what_it_lacks(spec: SessionSpec, runtime: str) -> None:
    asked = {
        "volumes": (bool(spec.volumes), "volumes", "VOLUME::UNSUPPORTED_BACKEND"),
        "gpu": (spec.resources.gpu > 0, "resourceLimits.gpu", _INVALID),
        "oci_runtime": (bool(spec.oci_runtime), "extensions.sandmill.oci-runtime", _INVALID),
    }
    for name in asked.keys() & LACKS.get(runtime, frozenset()):
        is_asked, field, code = asked[name]
        if is_asked:
            message = (
                f"sandboxes of the runtime {runtime} cannot have this: leave it out, or choose another runtime by the "
                "extension sandmill.runtime"
            )
            raise WireInvalidError(code, message, field=field)


def _platform_label(platform: str, runtime: str, offer: RuntimeOffer) -> Mapping[str, str]:
    if platform in offer.labels:
        return {PLATFORM_LABEL: platform}
    if None in offer.labels:  # a node of an earlier release, which does not tell
        return {}
    told = ", ".join(sorted(label for label in offer.labels if label is not None))
    message = f"is {platform}; the nodes that offer {runtime} are {told}"
    raise WireInvalidError(_INVALID, message, field="platform")
