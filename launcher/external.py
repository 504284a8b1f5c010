"""Asks external servers once before anything is started, so that a wrong URL is named and not waited for."""

import re
from urllib.parse import urlsplit

import psycopg
import redis

from launcher.errors import StartupError

__all__ = ["check_external_postgres", "check_external_redis"]

_POSTGRES_SCHEME = re.compile(r"^postgres(ql)?(\+psycopg)?://")
_REDIS_SCHEME = re.compile(r"^rediss?://")
_TIMEOUT_SECONDS = 5
_OLDEST_POSTGRES = 150000


def check_external_postgres(url: str) -> str:
    """Log in; returns the URL in its plain spelling. Raises StartupError without the password in it."""
    if not _POSTGRES_SCHEME.match(url):
        raise StartupError("DATABASE_URL must look like postgresql://user:password@host:port/database")
    plain = _POSTGRES_SCHEME.sub("postgresql://", url)
    try:
        with psycopg.connect(plain, connect_timeout=_TIMEOUT_SECONDS) as connection:
            version = connection.info.server_version
    except psycopg.Error as error:
        raise _does_not_work("DATABASE_URL", str(error), plain) from None
    if version < _OLDEST_POSTGRES:
        raise StartupError(
            f"DATABASE_URL is PostgreSQL {version // 10000}, at least 15 is needed: "
            "use a newer server, or unset DATABASE_URL to have one started here"
        )
    return plain


def check_external_redis(url: str) -> str:
    """PING; returns the URL. Raises StartupError without the password in it."""
    if not _REDIS_SCHEME.match(url):
        raise StartupError("REDIS_URL must look like redis://:password@host:port/0")
    try:
        with redis.Redis.from_url(
            url, socket_timeout=_TIMEOUT_SECONDS, socket_connect_timeout=_TIMEOUT_SECONDS
        ) as client:
            client.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        raise _does_not_work("REDIS_URL", str(error), url) from None
    return url


def _does_not_work(name: str, reason: str, url: str) -> StartupError:
    reason = " ".join(_without_password(reason, url).split())
    return StartupError(
        f"{name} does not work: {reason}; start that server or mend {name}, or unset it to have one started here"
    )


def _without_password(message: str, url: str) -> str:
    try:
        password = urlsplit(url).password
    except ValueError:
        # Too broken to be taken apart, so whatever the message quotes of it stays unsaid.
        return "it cannot be parsed"
    return message.replace(password, "***") if password else message
