"""Asks external servers once before anything is started, so that a wrong URL is named and not waited for."""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import psycopg
import redis

from core.errors import SettingError
from core.secret_rules import check_store_url
from launcher.errors import StartupError

__all__ = ["check_external_postgres", "check_external_redis"]

_POSTGRES_SCHEME = re.compile(r"^postgres(ql)?(\+psycopg)?://")
_REDIS_SCHEME = re.compile(r"^rediss?://")
_TIMEOUT_SECONDS = 5
_OLDEST_POSTGRES = 150000


def check_external_postgres(url: str) -> str:
    """Log in; returns the URL in its plain spelling.

    Raises StartupError without the password in it; also for a server that does not ask for one.
    """
    if not _POSTGRES_SCHEME.match(url):
        raise StartupError("DATABASE_URL must look like postgresql://user:password@host:port/database")
    plain = _POSTGRES_SCHEME.sub("postgresql://", url)
    _check_password("DATABASE_URL", plain)
    try:
        with psycopg.connect(plain, connect_timeout=_TIMEOUT_SECONDS) as connection:
            version = connection.info.server_version
            lets_anybody_in = _lets_anybody_in(connection)
    except psycopg.Error as error:
        raise _does_not_work("DATABASE_URL", str(error), plain) from None
    if version < _OLDEST_POSTGRES:
        raise StartupError(
            f"DATABASE_URL is PostgreSQL {version // 10000}, at least 15 is needed: "
            "use a newer server, or unset DATABASE_URL to have one started here"
        )
    if lets_anybody_in:
        raise StartupError(
            "DATABASE_URL: the server lets this user in without asking for the password: "
            "have its pg_hba.conf say scram-sha-256 instead of trust"
        )
    return plain


def check_external_redis(url: str) -> str:
    """PING; returns the URL.

    Raises StartupError without the password in it; also for a server that answers without one.
    """
    if not _REDIS_SCHEME.match(url):
        raise StartupError("REDIS_URL must look like redis://:password@host:port/0")
    _check_password("REDIS_URL", url)
    try:
        with redis.Redis.from_url(
            url, socket_timeout=_TIMEOUT_SECONDS, socket_connect_timeout=_TIMEOUT_SECONDS
        ) as client:
            client.ping()
            lets_anybody_in = "nopass" in _default_user_flags(client)
    except (redis.RedisError, OSError, ValueError) as error:
        raise _does_not_work("REDIS_URL", str(error), url) from None
    if lets_anybody_in:
        raise StartupError("REDIS_URL: the server lets anybody in without a password: set requirepass there")
    return url


def _check_password(name: str, url: str) -> None:
    try:
        check_store_url(name, url)
    except SettingError as error:
        raise StartupError(error.message) from None


def _lets_anybody_in(connection: "psycopg.Connection[Any]") -> bool:
    """Whether the server took us without proof; over a socket the kernel gives it, and TLS may by a certificate."""
    is_socket = connection.info.host.startswith("/")
    by_certificate = connection.pgconn.ssl_in_use and "sslcert" in connection.info.get_parameters()
    return not (connection.pgconn.used_password or is_socket or by_certificate)


def _default_user_flags(client: redis.Redis) -> Sequence[str]:
    """What holds for whoever sends no password; nothing is known where we may not ask."""
    try:
        user: Any = client.acl_getuser("default")
    except redis.ResponseError:
        return ()
    return list(user["flags"]) if user and "on" in user["flags"] else ()


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
