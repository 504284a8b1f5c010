import pytest

from core.errors import SpecInvalidError
from runtimes.local.images.names import ImageName, check_free

HEX = "a" * 64


@pytest.mark.parametrize(
    ("text", "full", "familiar"),
    [
        ("python", "docker.io/library/python:latest", "python:latest"),
        ("python:3.12", "docker.io/library/python:3.12", "python:3.12"),
        ("docker.io/library/python:3.12", "docker.io/library/python:3.12", "python:3.12"),
        ("index.docker.io/a/b", "docker.io/a/b:latest", "a/b:latest"),
        ("host:5000/a/b", "host:5000/a/b:latest", "host:5000/a/b:latest"),
        ("host:5000/a/b:tag", "host:5000/a/b:tag", "host:5000/a/b:tag"),
        (f"host:5000/a@sha256:{HEX}", f"host:5000/a@sha256:{HEX}", f"host:5000/a@sha256:{HEX}"),
        (f"a:t@sha256:{HEX}", f"docker.io/library/a:t@sha256:{HEX}", f"a:t@sha256:{HEX}"),
        ("[::1]:5000/x", "[::1]:5000/x:latest", "[::1]:5000/x:latest"),
        ("localhost/x", "localhost/x:latest", "localhost/x:latest"),
        ("GHCR.io/a/b:V1", "ghcr.io/a/b:V1", "ghcr.io/a/b:V1"),
        ("a/b/c.d_e--f", "docker.io/a/b/c.d_e--f:latest", "a/b/c.d_e--f:latest"),
    ],
)
def test_name_is_read_with_ports_tags_and_digests(text, full, familiar):
    name = ImageName.parse(text)
    assert (name.full, name.familiar) == (full, familiar)
    assert ImageName.parse(full) == ImageName.parse(familiar) == name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "lower-case"),
        ("MyOrg/app", "write 'myorg/app'"),
        ("Python", "write 'python'"),
        ("a:", "not a tag|lower-case"),
        ("a:b:c", "'b:c' is not a tag"),
        ("a@sha256:12", "64 hexadecimal"),
        ("a@", "64 hexadecimal"),
        ("../etc/passwd", "registry"),
        ("a//b", "lower-case"),
        ("a/../b", "lower-case"),
        ("host:99999999/a", "registry"),
        ("[::1/x", "registry"),
        ("a b", "lower-case"),
        ("a\nb", "lower-case"),
        ("-a", "lower-case"),
        ("--help", "lower-case"),
        ("é", "lower-case"),
        ("a/" * 150 + "b", "255"),
        ("a:" + "t" * 129, "tag"),
    ],
)
def test_what_is_no_name_is_refused_with_the_part_that_is_wrong(text, reason):
    with pytest.raises(SpecInvalidError, match=reason) as caught:
        ImageName.parse(text)
    assert caught.value.field == "image"


@pytest.mark.parametrize("text", ["host", "host:1", f"host@sha256:{HEX}", "docker.io/host", "snapshot:kept"])
def test_name_that_jobs_mean_something_else_by_is_refused(text):
    with pytest.raises(SpecInvalidError, match=r"^name '.*' is reserved, jobs mean") as refused:
        check_free(ImageName.parse(text), field="name")
    assert refused.value.field == "name"


@pytest.mark.parametrize(
    "text", ["host:5000/a", "localhost/host:1", "team/host", "my-host", "hosts", "a:host"]
)
def test_name_that_only_looks_reserved_is_free(text):
    check_free(ImageName.parse(text), field="name")
