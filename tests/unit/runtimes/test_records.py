import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtimes.local.records import RecordExistsError, Records
from runtimes.processes import ProcessRef


@pytest.fixture
def records(tmp_path):
    return Records(tmp_path / "records")


def test_name_is_taken_once(records):
    record = records.reserve("sm-a", {"k": "v"})
    with pytest.raises(RecordExistsError):
        records.reserve("sm-a", {})
    assert records.find("sm-a") == record
    assert record.labels == {"k": "v"}
    records.forget(record)
    assert records.find("sm-a") is None


def test_slots_differ_and_rest_before_they_are_used_again(records):
    first = records.reserve("sm-a", {})
    records.forget(first)
    second = records.reserve("sm-b", {})
    assert second.slot != first.slot


def test_many_at_once_get_slots_of_their_own(records, tmp_path):
    other = Records(tmp_path / "records")
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: (records if n % 2 else other).reserve(f"sm-{n}", {}), range(40)))
    assert len({record.slot for record in made}) == 40


def test_process_is_remembered_across_objects(records, tmp_path):
    me = ProcessRef.of(os.getpid())
    record = records.update(records.reserve("sm-a", {}), init=me, is_ready=True)
    assert Records(tmp_path / "records").find("sm-a") == record
    assert record.is_alive


def test_record_cut_short_by_a_power_loss_is_dropped(records, tmp_path):
    record = records.reserve("sm-a", {})
    (tmp_path / "records" / f"sm-a@{record.slot}.json").write_text('{"na')
    assert records.all() == []
    assert records.reserve("sm-a", {}).name == "sm-a"


def test_folder_is_for_its_owner(records, tmp_path):
    assert (tmp_path / "records").stat().st_mode & 0o777 == 0o700


def test_reused_process_number_is_another_process():
    me = ProcessRef.of(os.getpid())
    assert me is not None
    assert me.is_alive
    assert not ProcessRef(me.pid, me.started - 1).is_alive
    assert ProcessRef.of(1 << 22) is None


def test_a_record_is_found_without_reading_the_others(records, monkeypatch):
    """Each command looks its sandbox up: that may not take longer the more sandboxes there are."""
    wanted = records.reserve("sm-a", {})
    for number in range(5):
        records.reserve(f"sm-b{number}", {})
    read = []
    original = records._read
    monkeypatch.setattr(records, "_read", lambda path: read.append(path) or original(path))
    assert records.find("sm-a") == wanted
    assert records.find("sm-none") is None
    assert len(read) == 1


def test_a_forgotten_record_leaves_no_file(records, tmp_path):
    record = records.reserve("sm-a", {})
    other = records.reserve("sm-a-2", {})
    (tmp_path / "records" / f"sm-a@{record.slot}.99.tmp").write_text("cut short")
    records.forget(record)
    assert sorted(path.name for path in (tmp_path / "records").glob("sm-*")) == [f"sm-a-2@{other.slot}.json"]
