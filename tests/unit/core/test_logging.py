import contextlib
import io

import pytest
import structlog

from core.logging import configure_logging, get_logger


@pytest.fixture(autouse=True)
def _configuration():
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_logger_first_used_under_a_redirection_outlives_it(capsys):
    lines = io.StringIO()
    with contextlib.redirect_stderr(lines):
        configure_logging()
        log = get_logger("x")
        log.info("inside")
    assert '"event": "inside"' in lines.getvalue()
    lines.close()

    log.info("outside", answer=42)

    assert '"answer": 42' in capsys.readouterr().err
