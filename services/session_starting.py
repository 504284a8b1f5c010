"""A live sandbox from claim to running: what is made, from what, and what is told meanwhile."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

from core.logging import get_logger
from core.metrics import SANDBOX_START_SECONDS
from core.sealing import SecretBox
from core.tracing import span
from repositories.attempts import ClaimedAttempt
from runtimes.base import (
    ImageAuth,
    Runtime,
    SandboxHandle,
    SandboxSpec,
    VolumeClaim,
    VolumeMount,
)
from services.job_sandbox import sandbox_key, to_job_sandbox
from services.live_sandboxes import image_auth_purpose
from services.sandbox_handling import sandbox_labels, to_limits
from services.session_spec import SessionSpec, Volume

__all__ = [
    "ProgressNotes",
    "member_key",
    "start_sandbox",
    "to_sandbox_spec",
]

log = get_logger(__name__)

_NOTE_SECONDS = 0.5


class ProgressNotes:
    """Passes stages of a start on, none twice and not oftener than twice a second: a pull tells of each layer often."""

    def __init__(self, write: Callable[[str], None]) -> None:
        """write: takes the words; what it raises is logged only, since nobody waits for them."""
        self._write = write
        self._next = time.monotonic() + _NOTE_SECONDS
        self._written = ""

    def note(self, text: str) -> None:
        """Take a stage."""
        now = time.monotonic()
        if now < self._next or text == self._written:
            return
        self._next = now + _NOTE_SECONDS
        try:
            self._write(text)
            self._written = text
        except Exception as error:  # noqa: BLE001 -- a start does not fail for want of news about it
            log.warning("stage_not_noted", error=type(error).__name__)


def start_sandbox(
    runtime: Runtime, spec: SandboxSpec, *, timeout_seconds: float, notes: ProgressNotes
) -> SandboxHandle:
    """Make the sandbox; one that another worker has made for this attempt is taken as it is. Raises RunFailure."""
    with span("sandbox.create"), SANDBOX_START_SECONDS.labels(runtime.name).time():
        return runtime.create(spec, timeout_seconds=max(0.1, timeout_seconds), on_progress=notes.note)


def to_sandbox_spec(
    claimed: ClaimedAttempt,
    spec: SessionSpec,
    *,
    box: SecretBox,
    node_id: UUID,
    session_id: UUID,
    ready_seconds: float,
    owner: str,
) -> SandboxSpec:
    """Say what the runtime has to make. Raises SealBrokenError for credentials that cannot be read.

    ready_seconds: from its image being there until it answers. owner: of its named volumes.
    """
    labels = sandbox_labels(claimed, node_id=node_id, session_id=session_id)
    if spec.job_workdir is not None:
        made = _for_jobs(claimed.sandbox_name, spec, spec.job_workdir, labels)
        return replace(made, ready_seconds=ready_seconds)
    auth = None
    if claimed.image_auth is not None:
        secret = box.unseal(claimed.image_auth, purpose=image_auth_purpose(claimed.trial_id)).decode()
        auth = ImageAuth(*secret.split("\0", 1))
    return SandboxSpec(
        name=claimed.sandbox_name,
        image=spec.image,
        limits=to_limits(spec.resources, open_files=spec.open_files),
        env=spec.env,
        labels=labels,
        # Nobody is judged by what runs here: its user may steer it in every way.
        is_sealed=False,
        is_writable=True,
        entrypoint=spec.entrypoint or None,
        image_auth=auth,
        platform=spec.platform,
        volumes=[_mount(volume, owner=owner) for volume in spec.volumes],
        oci_runtime=spec.oci_runtime,
        ready_seconds=ready_seconds,
    )


def member_key(claimed: ClaimedAttempt) -> str | None:
    """Give the `sandbox_key` of a member that is for jobs. None: it is a live sandbox, or has variables of its own."""
    spec = SessionSpec.from_json(claimed.spec)
    if spec.job_workdir is None or spec.env:
        return None
    return sandbox_key(_for_jobs(claimed.sandbox_name, spec, spec.job_workdir, {}))


def _for_jobs(name: str, spec: SessionSpec, workdir: str, labels: Mapping[str, str]) -> SandboxSpec:
    return to_job_sandbox(name, spec.image, spec.resources, workdir=workdir, env=spec.env, labels=labels)


def _mount(volume: Volume, *, owner: str) -> VolumeMount:
    claim = None
    if volume.claim is not None:
        claim = VolumeClaim(volume.claim, volume.is_made_if_missing, volume.is_removed_with_sandbox, owner)
    return VolumeMount(
        name=volume.name,
        mount_path=volume.mount_path,
        host_path=volume.host_path,
        claim=claim,
        read_only=volume.is_read_only,
        sub_path=volume.sub_path,
    )
