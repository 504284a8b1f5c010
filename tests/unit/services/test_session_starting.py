import uuid

from core.sealing import SecretBox
from repositories.attempts import ClaimedAttempt
from runtimes.base import SandboxSpec
from services import session_starting
from services.jobspec import Resources
from services.session_spec import SessionSpec, Volume
from services.session_starting import ProgressNotes, to_sandbox_spec

SPEC = SessionSpec(
    "ubuntu",
    Resources(1000, 2 << 30, 1 << 30, 1024, 0),
    volumes=(Volume("v", "/mnt/v", claim="data"),),
)


def spec_of() -> SandboxSpec:
    claimed = ClaimedAttempt(
        attempt_id=uuid.uuid4(),
        trial_id=uuid.uuid4(),
        fence=1,
        number=1,
        tenant_id=1,
        index=0,
        seed=None,
        runtime="fake",
        desired="run",
        cancel_mode=None,
        infra_losses=0,
        task_retries=0,
        rule_retries=None,
        job_id=uuid.uuid4(),
        batch_id=uuid.uuid4(),
        job_key="sandbox",
        spec=SPEC.to_json(),
        total_left_seconds=None,
        start_left_seconds=60.0,
        traceparent=None,
        waited_seconds=0.0,
    )
    return to_sandbox_spec(
        claimed,
        SPEC,
        box=SecretBox(None),
        node_id=uuid.uuid4(),
        session_id=uuid.uuid4(),
        ready_seconds=45.0,
        owner="7 of 1",
    )


def test_a_live_sandbox_is_its_users_own():
    spec = spec_of()
    assert (spec.is_sealed, spec.is_writable, spec.entrypoint) == (False, True, None)
    assert (spec.limits.memory_bytes, spec.limits.pids, spec.limits.open_files) == (2 << 30, 1024, 65_536)
    assert spec.ready_seconds == 45.0
    (volume,) = spec.volumes
    assert volume.claim is not None
    assert (volume.claim.name, volume.claim.owner) == ("data", "7 of 1")


def test_what_was_noted_is_not_written_again(monkeypatch):
    monkeypatch.setattr(session_starting, "_NOTE_SECONDS", 0.0)
    written = []
    notes = ProgressNotes(written.append)
    for text in ("pulling app", "pulling app", "starting", "pulling app"):
        notes.note(text)
    assert written == ["pulling app", "starting", "pulling app"]


def test_note_that_could_not_be_written_is_tried_again(monkeypatch):
    monkeypatch.setattr(session_starting, "_NOTE_SECONDS", 0.0)
    tries = []

    def write(text):
        tries.append(text)
        if len(tries) == 1:
            raise OSError("the database is away")

    notes = ProgressNotes(write)
    for _ in range(3):
        notes.note("pulling app")
    assert tries == ["pulling app"] * 2
