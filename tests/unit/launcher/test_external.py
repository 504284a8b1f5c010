import pytest

from launcher.errors import StartupError
from launcher.external import check_external_postgres, check_external_redis
from launcher.ports import find_free_port


@pytest.mark.parametrize(
    "url",
    ["", "mysql://user:hunter2@127.0.0.1/x", "hunter2", "sqlite:///x", "postgresql+asyncpg://u:hunter2@h/x"],
)
def test_other_databases_are_refused_without_showing_the_url(url):
    with pytest.raises(StartupError, match="DATABASE_URL must look like postgresql://") as caught:
        check_external_postgres(url)
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_database_that_is_away_is_named_without_its_password(scheme):
    with pytest.raises(StartupError, match=r"DATABASE_URL does not work: .*refused") as caught:
        check_external_postgres(f"{scheme}://user:hunter2@127.0.0.1:{find_free_port()}/x")
    assert "hunter2" not in caught.value.message
    assert "\n" not in caught.value.message
    assert "start that server or mend DATABASE_URL, or unset it" in caught.value.message


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:hunter2@[::1/x", "postgresql://u:hunter2@h:port/x", "postgresql://u:hunter2%zz@h/x"],
)
def test_broken_database_url_is_refused_without_showing_it(url):
    with pytest.raises(StartupError, match="DATABASE_URL does not work") as caught:
        check_external_postgres(url)
    assert "hunter2" not in caught.value.message


def test_redis_that_is_away_is_named_without_its_password():
    with pytest.raises(StartupError, match=r"REDIS_URL does not work: .*refused") as caught:
        check_external_redis(f"redis://:hunter2@127.0.0.1:{find_free_port()}/0")
    assert "hunter2" not in caught.value.message
    assert "start that server or mend REDIS_URL, or unset it" in caught.value.message


@pytest.mark.parametrize("url", ["", "valkey://h", "redis//h", "unix:///x"])
def test_other_brokers_are_refused(url):
    with pytest.raises(StartupError, match="REDIS_URL must look like redis://"):
        check_external_redis(url)


def test_broken_redis_url_is_refused_without_showing_it():
    with pytest.raises(StartupError, match="REDIS_URL does not work") as caught:
        check_external_redis("redis://:hunter2@h:port/0")
    assert "hunter2" not in caught.value.message
