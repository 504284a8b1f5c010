"""What no program starts with: stores that let anybody in, and secrets that everybody knows.

Behind the database and the broker stands everything that tenants own, and whoever reaches the broker's port without a
password can ring, delay and drop bells. So this holds on a developer's machine, too: `./run up` without URLs starts
servers with passwords of their own.
"""

from urllib.parse import parse_qs, unquote, urlsplit

from core.config import Settings
from core.environment import settings_or_exit
from core.errors import SettingError

__all__ = ["check_password", "check_secret_key", "check_store_url", "program_settings"]

_WELL_KNOWN = frozenset(
    {
        "admin",
        "change-me",
        "change_me",
        "changeme",
        "default",
        "example",
        "guest",
        "password",
        "postgres",
        "redis",
    }
    | {"root", "sandmill", "secret", "test"}
)
_FEWEST_CHARACTERS = 8
"""Different ones in a key of 32 or more: `openssl rand -hex 32` has fewer once in 10^17 times."""


def program_settings(program: str) -> Settings:
    """Read the environment for a program that has just started; what it must not start with ends it with one line."""
    settings = settings_or_exit(Settings, program=program)
    try:
        check_store_url("DATABASE_URL", settings.database_url.get_secret_value())
        check_store_url("REDIS_URL", settings.redis_url.get_secret_value())
        check_secret_key(settings)
    except SettingError as error:
        raise SystemExit(f"{program}: {error.message}") from None
    return settings


def check_secret_key(settings: Settings) -> None:
    """Refuse a key that anybody could guess. Raises SettingError, which never shows its value."""
    key = settings.secret_key
    if key is not None and len(set(key.get_secret_value())) < _FEWEST_CHARACTERS:
        raise SettingError("SANDMILL_SECRET_KEY: must be random, e.g. of `openssl rand -hex 32`")


def check_store_url(name: str, url: str) -> None:
    """Refuse the URL of a store without a password, or with one that everybody knows. Raises SettingError.

    No password is needed over a Unix socket, where the kernel tells who calls, with a client's certificate, or where
    libpq is told of a file that holds it.
    """
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        password, host = unquote(parts.password or ""), parts.hostname
    except ValueError:
        return  # too broken to be judged here: whoever connects will say so
    if options.get("password"):
        password = options["password"][-1]
    # Without a host libpq takes a socket, and Redis this machine by TCP.
    is_socket = (parts.scheme.startswith("postgres") and not host) or options.get("host", [""])[
        -1
    ].startswith("/")
    if (
        is_socket
        or {"sslcert", "ssl_certfile", "passfile", "service"} & options.keys()
        or parts.scheme == "unix"
    ):
        return
    if not password:
        raise SettingError(f"{name}: must have a password, and the server must ask for it")
    check_password(name, unquote(parts.username or ""), password)


def check_password(name: str, user: str, password: str) -> None:
    """Refuse a password that everybody knows, or that the user's name gives away. Raises SettingError."""
    if password.lower() in _WELL_KNOWN or password in {"", user}:
        raise SettingError(f"{name}: must have a password of its own, not one that everybody knows")
