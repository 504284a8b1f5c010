"""Bodies of the lifecycle API, as official clients send and read them. Source: sections 1.3 to 1.19 of the protocol.

Unknown keys are ignored, as they are there; what a key means is checked in `api.wire.requests`.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from services.live_sandboxes import MAX_TIMEOUT_SECONDS

__all__ = [
    "CapacityRequest",
    "CapacityView",
    "ChangePoolRequest",
    "ContainerRequest",
    "CreatePoolRequest",
    "CreateSandboxRequest",
    "DiagnosticView",
    "EndpointView",
    "ImageRequest",
    "MetricsEventRequest",
    "NetworkPolicyRequest",
    "PaginationView",
    "PlainTemplateRequest",
    "PlatformRequest",
    "PodTemplateRequest",
    "PoolListView",
    "PoolStatusView",
    "PoolView",
    "RenewRequest",
    "SandboxListView",
    "SandboxView",
    "SnapshotListView",
    "SnapshotRequest",
    "SnapshotView",
    "StatusView",
    "VolumeRequest",
    "WireRequest",
    "WireView",
]

_Text = Annotated[str, Field(max_length=64 << 10)]
_Name = Annotated[str, Field(min_length=1, max_length=512)]
_Count = Annotated[int, Field(ge=0, le=10_000)]


def _to_utc(value: datetime) -> datetime:
    """Raises ValueError for what lies at the end of time, where not every zone has a date."""
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("must be a time before the year 9999") from error


class WireRequest(BaseModel):
    """Base of what clients send; a number that comes as text, and the like, is taken as the original takes it."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)


class WireView(BaseModel):
    """Base of what is answered: keys without a value are left out, since official clients fail on null."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True, populate_by_name=True)

    def to_json(self) -> dict[str, Any]:
        """Give JSON values."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class ImageAuthRequest(WireRequest):
    """Credentials of a registry."""

    username: _Name
    password: Annotated[str, Field(min_length=1, max_length=16 << 10)]


class ImageRequest(WireRequest):
    """Which image, and who may pull it."""

    uri: _Name
    auth: ImageAuthRequest | None = None


class PlatformRequest(WireRequest):
    """For which machine."""

    os: _Name
    arch: _Name


class HostVolumeRequest(WireRequest):
    """A folder of the node."""

    path: _Text


class ClaimVolumeRequest(WireRequest):
    """A named volume."""

    claim_name: _Text
    create_if_not_exists: bool | None = True
    delete_on_sandbox_termination: bool | None = False
    storage_class: _Text | None = None
    storage: _Text | None = None
    access_modes: list[_Text] | None = None


class VolumeRequest(WireRequest):
    """A folder in the sandbox that comes from elsewhere; exactly one backend."""

    name: _Text
    mount_path: _Text
    read_only: bool | None = False
    sub_path: _Text | None = None
    host: HostVolumeRequest | None = None
    pvc: ClaimVolumeRequest | None = None
    ossfs: dict[str, Any] | None = None


class CredentialProxyRequest(WireRequest):
    """Whether credentials are put into outgoing requests."""

    enabled: bool | None = False


class NetworkRuleRequest(WireRequest):
    """Whether one name or address may be reached."""

    action: Literal["allow", "deny"]
    target: _Name


class NetworkPolicyRequest(WireRequest):
    """What may be reached from a sandbox."""

    default_action: Literal["allow", "deny"] | None = None
    egress: Annotated[list[NetworkRuleRequest], Field(max_length=10_000)] | None = None


class CreateSandboxRequest(WireRequest):
    """Body of POST /sandboxes."""

    image: ImageRequest | None = None
    snapshot_id: _Name | None = None
    template_id: _Name | None = None
    platform: PlatformRequest | None = None
    timeout: Annotated[int, Field(ge=60, le=MAX_TIMEOUT_SECONDS)] | None = None
    resource_limits: dict[str, _Text] | None = None
    resource_requests: dict[str, _Text] | None = None
    env: dict[str, _Text | None] | None = None
    metadata: dict[str, _Text] | None = None
    lifecycle: dict[str, Any] | None = None
    entrypoint: Annotated[list[_Text], Field(min_length=1, max_length=1000)] | None = None
    network_policy: NetworkPolicyRequest | None = None
    credential_proxy: CredentialProxyRequest | None = None
    secure_access: bool | None = False
    volumes: Annotated[list[VolumeRequest], Field(max_length=32)] | None = None
    extensions: Annotated[dict[str, _Text], Field(max_length=64)] | None = None


class StrictRequest(WireRequest):
    """Base of what is not left out in silence: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class CapacityRequest(StrictRequest):
    """How many members a pool has: free ones (buffer), and all of them (pool)."""

    buffer_min: _Count
    buffer_max: _Count
    pool_min: _Count
    pool_max: _Count


class CreatePoolRequest(WireRequest):
    """Body of POST /pools."""

    name: _Text
    template: dict[str, Any]
    capacity_spec: CapacityRequest


class ChangePoolRequest(StrictRequest):
    """Body of PUT /pools/{name}. The protocol knows capacitySpec alone."""

    capacity_spec: CapacityRequest | None = None
    template: dict[str, Any] | None = None


class PlainTemplateRequest(StrictRequest):
    """A pool's template in the words of a create."""

    image: ImageRequest
    entrypoint: Annotated[list[_Text], Field(min_length=1, max_length=1000)] | None = None
    env: dict[str, _Text | None] | None = None
    resource_limits: dict[str, _Text] | None = None
    metadata: dict[str, _Text] | None = None
    extensions: dict[str, _Text] | None = None


class VariableRequest(StrictRequest):
    """A variable of a pod's container; none that comes from elsewhere."""

    name: _Name
    value: _Text = ""


class ContainerResourcesRequest(StrictRequest):
    """What a pod's container may use. requests: the installation says what is held back, so they count for nothing."""

    limits: dict[str, _Text] | None = None
    requests: dict[str, _Text] | None = None


class ContainerRequest(StrictRequest):
    """The container of a pod, as far as sandboxes have the same thing."""

    name: _Text | None = None
    image: _Name
    command: list[_Text] | None = None
    args: list[_Text] | None = None
    env: list[VariableRequest] | None = None
    resources: ContainerResourcesRequest | None = None


class PodMetadataRequest(StrictRequest):
    """Of a pod's template. annotations: those of Sandmill alone."""

    name: _Text | None = None
    labels: dict[str, _Text] | None = None
    annotations: dict[str, _Text] | None = None


class PodSpecRequest(StrictRequest):
    """A pod, as far as sandboxes have the same thing."""

    containers: Annotated[list[ContainerRequest], Field(min_length=1, max_length=1)]
    node_selector: dict[str, _Text] | None = None
    runtime_class_name: _Name | None = None
    restart_policy: Literal["Never", "OnFailure", "Always"] | None = None


class PodTemplateRequest(StrictRequest):
    """A pool's template in the words of Kubernetes."""

    metadata: PodMetadataRequest | None = None
    spec: PodSpecRequest


class RenewRequest(WireRequest):
    """Body of POST /sandboxes/{id}/renew-expiration."""

    expires_at: Annotated[AwareDatetime, AfterValidator(_to_utc)]


class SnapshotRequest(WireRequest):
    """Body of POST /sandboxes/{id}/snapshots, which may be left out."""

    name: Annotated[str, Field(min_length=1, max_length=255)] | None = None


class MetricsEventRequest(WireRequest):
    """What a client tells of a create of its own."""

    event_type: Literal["sandbox.create"]
    create_duration_ms: Annotated[int, Field(ge=0)]
    success: bool
    sandbox_id: _Text | None = None
    image: _Text | None = None


class StatusView(WireView):
    """Where a sandbox is."""

    state: str
    reason: str | None = None
    message: str | None = None
    last_transition_at: datetime | None = None


class SandboxView(WireView):
    """A sandbox."""

    id: str
    status: StatusView
    entrypoint: list[str]
    created_at: datetime
    image: dict[str, str] | None = None
    snapshot_id: str | None = None
    platform: dict[str, str] | None = None
    metadata: dict[str, str] | None = None
    extensions: dict[str, str] | None = None
    allocation: dict[str, str] | None = None
    expires_at: datetime | None = None


class PaginationView(WireView):
    """Where in a list a page is."""

    page: int
    page_size: int
    total_items: int
    total_pages: int
    has_next_page: bool


class SandboxListView(WireView):
    """A page of sandboxes."""

    items: list[SandboxView]
    pagination: PaginationView


class SnapshotView(WireView):
    """A snapshot."""

    id: str
    sandbox_id: str
    status: StatusView
    created_at: datetime
    name: str | None = None


class SnapshotListView(WireView):
    """A page of snapshots."""

    items: list[SnapshotView]
    pagination: PaginationView


class CapacityView(WireView):
    """How many members a pool has to have."""

    buffer_max: int
    buffer_min: int
    pool_max: int
    pool_min: int


class PoolStatusView(WireView):
    """How many members it has. What comes after revision is not part of the protocol.

    revision: of the template. starting: that do not run yet. message: why the last ones did not come to run.
    """

    total: int
    allocated: int
    available: int
    revision: str
    starting: int
    message: str | None = None


class PoolView(WireView):
    """A warm pool."""

    name: str
    capacity_spec: CapacityView
    status: PoolStatusView
    created_at: datetime
    template: dict[str, Any]


class PoolListView(WireView):
    """All pools of a tenant."""

    items: list[PoolView]


class DiagnosticView(WireView):
    """Some text about a sandbox."""

    sandbox_id: str
    kind: str
    scope: str
    delivery: str
    content_type: str
    content: str
    content_length: int
    truncated: bool
    warnings: list[str] | None = None


class EndpointView(WireView):
    """Where a port is, and the headers that every request to it needs."""

    endpoint: str
    headers: dict[str, str] | None = None
