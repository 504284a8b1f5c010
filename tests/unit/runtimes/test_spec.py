"""What no sandbox can be is refused before any runtime sees it, by the name of the field."""

import pytest

from core.errors import SpecInvalidError
from runtimes.base import ImageAuth, VolumeClaim, VolumeMount, refuse_fields
from tests.support.sandboxes import make_spec


def test_credentials_are_never_printed():
    spec = make_spec(image_auth=ImageAuth("user-7", "secret-7"))
    assert "user-7" not in repr(spec)
    assert "secret-7" not in repr(spec)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, "volumes[v]"),
        ({"host_path": "/a", "claim": VolumeClaim("c")}, "volumes[v]"),
        ({"claim": VolumeClaim("../c")}, "volumes[v].claim"),
        ({"claim": VolumeClaim("")}, "volumes[v].claim"),
        ({"host_path": "a"}, "volumes[v].host_path"),
        ({"host_path": "/a/../b"}, "volumes[v].host_path"),
        ({"host_path": "/a:/b"}, "volumes[v].host_path"),
        ({"host_path": "/a", "mount_path": "m"}, "volumes[v].mount_path"),
        ({"host_path": "/a", "mount_path": "/"}, "volumes[v].mount_path"),
        ({"host_path": "/a", "mount_path": "/m/.."}, "volumes[v].mount_path"),
        ({"host_path": "/a", "sub_path": "/s"}, "volumes[v].sub_path"),
        ({"host_path": "/a", "sub_path": "s/../.."}, "volumes[v].sub_path"),
        ({"host_path": "/a", "sub_path": ""}, "volumes[v].sub_path"),
    ],
)
def test_mount_that_cannot_be_names_its_field(changes, field):
    with pytest.raises(SpecInvalidError) as caught:
        VolumeMount(**{"name": "v", "mount_path": "/m", **changes})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hostname": "a.b"}, "hostname"),
        ({"hostname": "-a"}, "hostname"),
        ({"platform": "linux"}, "platform"),
        ({"platform": "linux/amd64;x"}, "platform"),
        ({"volumes": [VolumeMount("a", "/m", "/x"), VolumeMount("a", "/n", "/x")]}, "volumes"),
        ({"volumes": [VolumeMount("a", "/m", "/x"), VolumeMount("b", "/m/", "/x")]}, "volumes"),
    ],
)
def test_spec_that_cannot_be_names_its_field(changes, field):
    with pytest.raises(SpecInvalidError) as caught:
        make_spec(**changes)
    assert caught.value.field == field


def test_field_a_runtime_cannot_do_is_named():
    refuse_fields(make_spec(), "some", "volumes", "oci_runtime")
    with pytest.raises(SpecInvalidError, match="the some runtime") as caught:
        refuse_fields(make_spec(oci_runtime="runsc"), "some", "volumes", "oci_runtime")
    assert caught.value.field == "oci_runtime"
