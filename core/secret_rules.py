"""What no program starts with: stores that let anybody in, and secrets that everybody knows.

Behind the database and the broker stands everything that tenants own, and whoever reaches the broker's port without a
password can ring, delay and drop bells. So this holds on a developer's machine, too: `./run up` without URLs starts
servers with passwords of their own.
"""

import ipaddress
import os
import re
import sys
from urllib.parse import parse_qs, unquote, urlsplit

from core.config import Settings
from core.config_file import read_config_file
from core.environment import settings_or_exit, told_name
from core.errors import SettingError

__all__ = [
    "check_keys",
    "check_password",
    "check_store_url",
    "is_loopback",
    "key_warnings",
    "program_settings",
]

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
_SHORT_KEY_CHARACTERS = 16

_FEWEST_CHARACTERS = 8
"""Different ones in a key of 32 or more: `openssl rand -hex 32` has fewer once in 10^17 times."""


def program_settings(program: str) -> Settings:
    """Read the settings of a program that has just started; what it must not start with ends it with one line.

    What the configuration file says in vain is told on stderr.
    """
    settings = settings_or_exit(Settings, program=program)
    try:
        check_store_url(told_name(Settings, "database_url"), settings.database_url.get_secret_value())
        check_store_url(told_name(Settings, "redis_url"), settings.redis_url.get_secret_value())
        check_keys(settings)
    except SettingError as error:
        raise SystemExit(f"{program}: {error.message}") from None
    for line in (*read_config_file(os.environ).warnings, *key_warnings(settings)):
        sys.stderr.write(f"{program}: {line}\n")
    return settings


def check_keys(settings: Settings) -> None:
    """Refuse keys that anybody could guess, and an open door. Raises SettingError, which never shows a key."""
    key = settings.secret_key
    if key is not None and len(set(key.get_secret_value())) < _FEWEST_CHARACTERS:
        name = told_name(Settings, "secret_key")
        raise SettingError(f"{name}: must be random, e.g. of `openssl rand -hex 32`")
    if settings.server_api_key is not None:
        name, text = told_name(Settings, "server_api_key"), settings.server_api_key.get_secret_value()
        if not re.fullmatch(r"[!-~]+", text):
            raise SettingError(
                f"{name}: must be of ASCII characters without blanks, as a header can hold them"
            )
        check_password(name, "", text, what="key")
    elif settings.insecure_server and not is_loopback(settings.api_host):
        message = (
            f"{told_name(Settings, 'insecure_server')}: the API listens on {settings.api_host}, where anybody could "
            "run code: set [server] api_key, or [server] host to 127.0.0.1"
        )
        raise SettingError(message)


def key_warnings(settings: Settings) -> list[str]:
    """Tell of a key that is let pass and should not be kept."""
    key = settings.server_api_key
    if key is None or len(key.get_secret_value()) >= _SHORT_KEY_CHARACTERS:
        return []
    name = told_name(Settings, "server_api_key")
    return [f"{name}: is short enough to be guessed: make one by `openssl rand -hex 24`"]


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach what listens there."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


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


def check_password(name: str, user: str, password: str, *, what: str = "password") -> None:
    """Refuse a password that everybody knows, or that the user's name gives away. Raises SettingError."""
    if password.lower() in _WELL_KNOWN or password in {"", user}:
        raise SettingError(f"{name}: must have a {what} of its own, not one that everybody knows")
