from launcher.logs import bound_log, last_lines, rotate_log


def test_log_of_the_last_run_is_kept_once(tmp_path):
    log = tmp_path / "api.log"
    for text in ("first", "second", "third"):
        rotate_log(log)
        log.write_text(text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["api.log", "api.log.1"]
    assert (tmp_path / "api.log.1").read_text() == "second"


def test_rotating_a_missing_log_does_nothing(tmp_path):
    rotate_log(tmp_path / "api.log")
    assert list(tmp_path.iterdir()) == []


def test_writer_goes_on_in_a_log_that_was_cut(tmp_path):
    log = tmp_path / "api.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"x" * 100)
        assert bound_log(log, max_bytes=99)
        writer.write(b"after")
    assert log.read_bytes() == b"after"
    assert (tmp_path / "api.log.1").read_bytes() == b"x" * 100


def test_small_and_missing_logs_are_left_alone(tmp_path):
    log = tmp_path / "api.log"
    log.write_bytes(b"x" * 99)
    assert not bound_log(log, max_bytes=99)
    assert not bound_log(tmp_path / "missing.log", max_bytes=99)
    assert log.read_bytes() == b"x" * 99


def test_last_lines_skip_blank_ones_and_survive_binary(tmp_path):
    log = tmp_path / "api.log"
    log.write_bytes(b"one\n\ntwo \xff\n\n three\n\n")
    assert last_lines(log, count=2) == "two \ufffd | three"
    assert last_lines(tmp_path / "missing.log") == ""


def test_last_lines_of_a_large_log_are_found(tmp_path):
    log = tmp_path / "api.log"
    log.write_bytes(b"noise\n" * 100_000 + b"the end\n")
    assert last_lines(log, count=1) == "the end"
