import ipaddress
import socket

import pytest

from core.errors import InvalidRequestError
from core.outbound import AddressGuard, AddressRefusedError, UnresolvedError, parse_url

PRIVATE = (
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.8",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::1",
    "2001:0:1::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
)


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_the_public_internet_is_not_called(address):
    with pytest.raises(AddressRefusedError):
        AddressGuard().check(ipaddress.ip_address(address), scheme="https")


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_public_address_is_called_by_https_alone(address):
    AddressGuard().check(ipaddress.ip_address(address), scheme="https")
    with pytest.raises(AddressRefusedError):
        AddressGuard().check(ipaddress.ip_address(address), scheme="http")


def test_operator_opens_networks_one_by_one():
    guard = AddressGuard(["10.1.0.0/16"])
    guard.check(ipaddress.ip_address("10.1.2.3"), scheme="http")
    guard.check(ipaddress.ip_address("::ffff:10.1.2.3"), scheme="http")
    with pytest.raises(AddressRefusedError):
        guard.check(ipaddress.ip_address("10.2.0.1"), scheme="https")


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "[::ffff:7f00:1]", "localhost"])
def test_other_spellings_of_loopback_are_seen_through(host):
    with pytest.raises(AddressRefusedError):
        AddressGuard().resolve(parse_url(f"https://{host}/", field="url"))


def test_name_with_one_private_address_is_refused_whole(monkeypatch):
    def answer(*_: object, **__: object) -> list:
        return [(2, 1, 6, "", ("93.184.215.14", 443)), (2, 1, 6, "", ("10.0.0.1", 443))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with pytest.raises(AddressRefusedError):
        AddressGuard().resolve(parse_url("https://both.example.org/", field="url"))


def test_name_without_address_may_have_one_later(monkeypatch):
    def answer(*_: object, **__: object) -> list:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with pytest.raises(UnresolvedError):
        AddressGuard().resolve(parse_url("https://later.example.org/", field="url"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hooks",
        "//host/",
        "ftp://host/",
        "file:///etc/passwd",
        "gopher://host:70/",
        "https://",
        "https:///path",
        "https://user@host/",
        "https://user:password@host/",
        "https://host:0/",
        "https://host:65536/",
        "https://host:port/",
        "https://host/#part",
        "https://ho st/",
        "https://host/a\nb",
        "https://host\\@other/",
        "https://höst/",
        "https://[::1/",
        "https://-host/",
        "https://host/" + "a" * 2000,
    ],
)
def test_what_is_no_plain_web_address_is_refused_with_its_field(text):
    with pytest.raises(InvalidRequestError) as error:
        parse_url(text, field="webhook.url")
    assert error.value.field == "webhook.url"


@pytest.mark.parametrize(
    ("text", "origin", "authority", "at"),
    [
        (
            "https://Host.Example./a?b=c",
            "https://host.example:443",
            "host.example",
            "https://10.0.0.9:443/a?b=c",
        ),
        ("http://host:8080", "http://host:8080", "host:8080", "http://10.0.0.9:8080"),
        (
            "https://[2606:2800::1]/a",
            "https://[2606:2800::1]:443",
            "[2606:2800::1]",
            "https://10.0.0.9:443/a",
        ),
    ],
)
def test_parts_of_a_url(text, origin, authority, at):
    url = parse_url(text, field="url")
    assert (url.origin, url.authority, url.at("10.0.0.9")) == (origin, authority, at)
    assert url.at("fd00::1").split("/")[2] == f"[fd00::1]:{url.port}"
