import pytest

from core.errors import RuntimeUnavailableError
from launcher import doctor
from runtimes.fake import FakeRuntime


class WeakRuntime(FakeRuntime):
    """Works, with one limit that nobody holds and one that is held badly."""

    def limitations(self) -> list[str]:
        return ["CPU is not limited: run as root", "memory is limited per process: run as root"]


class MissingRuntime(WeakRuntime):
    def check(self) -> None:
        raise RuntimeUnavailableError("no engine:\n install one")


def lines(monkeypatch, tmp_path, runtime, *, is_required: bool) -> list[str]:
    monkeypatch.setattr(doctor, "build_runtime", lambda _name, _folder: runtime())
    monkeypatch.setattr(doctor, "runtime_modes", lambda _name, _folder: [("by hand", lambda: "seen")])
    return [str(found) for found in doctor._check_runtime("local", tmp_path, is_required=is_required)]


def test_each_limitation_is_a_note_with_its_way_out(monkeypatch, tmp_path):
    assert lines(monkeypatch, tmp_path, WeakRuntime, is_required=True) == [
        "ok    runtime local: works",
        "note  runtime local: CPU is not limited: run as root",
        "note  runtime local: memory is limited per process: run as root",
        "ok    runtime local, by hand: seen",
    ]
    assert lines(monkeypatch, tmp_path, FakeRuntime, is_required=True)[0] == "ok    runtime local: works"


@pytest.mark.parametrize(("is_required", "mark"), [(True, "FAIL"), (False, "-   ")])
def test_a_runtime_that_does_not_work_has_no_notes(monkeypatch, tmp_path, is_required, mark):
    found = lines(monkeypatch, tmp_path, MissingRuntime, is_required=is_required)
    assert found == [
        f"{mark}  runtime local: no engine: install one",
        "ok    runtime local, by hand: seen",
    ]


@pytest.mark.parametrize(("slots", "is_told"), [(7, False), (8, True), (128, True)])
def test_sandboxes_that_could_take_every_process_are_told(monkeypatch, tmp_path, slots, is_told):
    (tmp_path / "pid_max").write_text("32768\n")
    monkeypatch.setattr(doctor, "_PID_MAX", tmp_path / "pid_max")
    found = [str(finding) for finding in doctor._check_processes(slots, 4096)]
    assert [line.startswith(f"note  processes: {slots} sandboxes of 4096 each") for line in found] == [
        True
    ] * is_told
    monkeypatch.setattr(doctor, "_PID_MAX", tmp_path / "missing")
    assert list(doctor._check_processes(slots, 4096)) == []
