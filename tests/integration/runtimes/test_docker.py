"""The docker runtime beside other users of the engine, with images of every make, and without an engine."""

import gc
import subprocess
import threading
import uuid
from contextlib import ExitStack, closing

import pytest

from core.errors import (
    BadImageError,
    CreateTimeoutError,
    DaemonError,
    ExecdUnreachableError,
    ImageNotFoundError,
    RegistryRateLimitedError,
    RegistryUnreachableError,
    RuntimeUnavailableError,
)
from runtimes.base import FileUpload
from runtimes.container_spec import own_user
from runtimes.docker import DockerConfig, DockerRuntime
from tests.support.images import BUSYBOX_IMAGE, EMPTY_IMAGE, derived_image
from tests.support.registry import serve_registry
from tests.support.runtime_fixtures import kind_named
from tests.support.sandboxes import START_SECONDS, docker_kind

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def kind(runtime_folder):
    yield from kind_named("docker", runtime_folder)


@pytest.fixture
def image(kind):
    """Make an image from the busybox one: image(change, ..., folder_file="text")."""
    with ExitStack() as made:

        def make(*changes, **files):
            contents = {path.replace("_", "/"): text.encode() for path, text in files.items()}
            return made.enter_context(derived_image(BUSYBOX_IMAGE, "ENV PATH=/bin", *changes, files=contents))

        yield make


def docker_output(*arguments):
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout


def test_image_without_anything_starts(kind):
    with kind.box(image=EMPTY_IMAGE) as box:
        assert box.python("print('hello')").out == "hello\n"
        assert "sh" in (box.sh("true").result.error or "")


# A whole id: the engine takes the beginning of one, too, and some image may really begin so.
@pytest.mark.parametrize("name", ["no/such:image", "UPPER", "a b", "", f"sha256:{'0' * 64}", "-v"])
def test_image_that_is_not_there_is_not_pulled(kind, name):
    with pytest.raises(ImageNotFoundError):
        kind.runtime.create(kind.spec(image=name), timeout_seconds=START_SECONDS)


@pytest.mark.parametrize(
    "refusal",
    [
        (429, "TOOMANYREQUESTS", RegistryRateLimitedError, 12.5),
        (503, "UNAVAILABLE", RegistryUnreachableError, None),
        (404, "MANIFEST_UNKNOWN", ImageNotFoundError, None),
    ],
)
def test_pull_that_a_registry_refuses_is_blamed_on_what_it_says(kind, runtime_folder, tmp_path, refusal):
    status, code, failure, seconds = refusal
    with serve_registry(tmp_path) as registry, closing(pulling_runtime(runtime_folder)) as runtime:
        registry.faults = [
            lambda handler: (
                handler.path != "/v2/" and handler.refuse(status, code, "retry-after: 12.5s, allowed")
            )
        ]
        with pytest.raises(failure) as caught:
            runtime.create(kind.spec(image=f"{registry.address}/team/app:1"), timeout_seconds=START_SECONDS)
    assert type(caught.value) is failure
    assert caught.value.retry_after_seconds == seconds


def test_pull_counts_as_a_part_of_the_start(kind, runtime_folder, tmp_path):
    over = threading.Event()
    with serve_registry(tmp_path) as registry, closing(pulling_runtime(runtime_folder)) as runtime:
        runtime.check()
        registry.faults = [lambda handler: handler.path != "/v2/" and over.wait(30) and handler.refuse(404)]
        try:
            with pytest.raises(CreateTimeoutError):
                runtime.create(kind.spec(image=f"{registry.address}/team/app:1"), timeout_seconds=1.0)
        finally:
            over.set()


def pulling_runtime(folder):
    folders = {"bundle_dir": folder / "bundles", "state_dir": folder / "docker"}
    return DockerRuntime(DockerConfig(**folders, pull=True))


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("1234", "1234 1234"),
        ("1234:77", "1234 77"),
        ("app", "1500 1600"),
        ("app:staff", "1500 50"),
        ("0", None),
        ("root", None),
        ("toor", None),
    ],
)
def test_user_of_the_image_is_kept_unless_it_is_root(kind, image, user, expected):
    name = image(
        f"USER {user}",
        etc_passwd="app:x:1500:1600::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\n",
        etc_group="staff:x:50:\n",
    )
    with kind.box(image=name, workdir="/made") as box:
        own = "{} {}".format(*own_user(box.handle.name))
        said = box.sh("echo $(id -u) $(id -g); echo x > /made/file; echo y > /tmp/file").out
        assert said == f"{expected or own}\n"
        assert box.sh("cat /made/file /tmp/file").out == "x\ny\n"


def test_user_the_image_does_not_know_is_the_images_fault(kind, image):
    with pytest.raises(BadImageError, match="ghost"):
        kind.runtime.create(kind.spec(image=image("USER ghost")), timeout_seconds=START_SECONDS)


def test_workdir_the_image_has_is_shown_as_it_is(kind):
    with kind.box(workdir="/kept") as box:
        assert box.sh("pwd; cat file").out == "/kept\nfrom the image\n"


def test_workdir_of_the_image_is_where_commands_start(kind, image):
    with kind.box(image=image("WORKDIR /kept")) as box:
        assert box.sh("cat file").out == "from the image\n"


def test_environment_of_the_image_is_kept_and_its_loader_settings_do_not_reach_execd(kind, image):
    name = image("ENV FROM_IMAGE=1", "ENV LD_PRELOAD=/evil.so", "ENV LD_LIBRARY_PATH=/evil")
    with kind.box(image=name, env={"FROM_SPEC": "2"}) as box:
        said = box.sh("echo $FROM_IMAGE $FROM_SPEC $LD_PRELOAD $LD_LIBRARY_PATH")
        assert said.out == "1 2 /evil.so /evil\n"


def test_container_of_somebody_else_is_left_alone(kind):
    spec = kind.spec()
    docker_output("create", "--name", spec.name, BUSYBOX_IMAGE, "sh")
    try:
        with pytest.raises(DaemonError, match="somebody else"):
            kind.runtime.create(spec, timeout_seconds=START_SECONDS)
        assert spec.name not in {handle.name for handle in kind.runtime.list()}
        assert docker_output("inspect", spec.name)
    finally:
        docker_output("rm", spec.name)


def test_container_that_was_killed_is_replaced(kind):
    with kind.box() as old:
        docker_output("kill", old.handle.ref)
        with kind.box(name=old.handle.name) as new:
            assert new.handle.ref != old.handle.ref
            new.client.ping()


def test_containers_outlive_the_runtime_object(kind, runtime_folder):
    with kind.box() as box, docker_kind(runtime_folder) as other:
        assert box.handle in other.runtime.list()
        other.runtime.executions(box.handle).ping()
        assert (
            other.runtime.create(kind.spec(name=box.handle.name), timeout_seconds=START_SECONDS) == box.handle
        )


def test_container_of_another_node_is_not_taken_over(kind, runtime_folder, tmp_path):
    config = DockerConfig(bundle_dir=runtime_folder / "bundles", state_dir=tmp_path)
    other = DockerRuntime(config)
    with kind.box() as box:
        with pytest.raises(DaemonError, match="another node"):
            other.create(kind.spec(name=box.handle.name), timeout_seconds=START_SECONDS)
        with pytest.raises(ExecdUnreachableError, match="401"):
            other.executions(box.handle).ping()
        box.client.ping()
    other.close()


def test_out_of_memory_is_told_after_the_container_has_ended(kind):
    with kind.box(limits={"memory_bytes": 64 << 20}) as box:
        box.python("s = bytearray(200 << 20)\nfor i in range(0, len(s), 4096): s[i] = 1")
        docker_output("kill", box.handle.ref)
        assert (kind.runtime.stats(box.handle).oom_kills or 0) >= 1


def test_writable_root_is_a_choice(runtime_folder, image):
    name = image("USER 0")
    with docker_kind(runtime_folder, writable_root=True) as kind, kind.box(image=name, workdir="/w") as box:
        assert "overlay / overlay rw" in box.sh("cat /proc/mounts").out
        box.client.upload([FileUpload("/tmp/file", b"x")])
    with docker_kind(runtime_folder) as kind, kind.box(image=name) as box:
        assert "overlay / overlay ro" in box.sh("cat /proc/mounts").out


def test_nothing_is_left_of_looking_into_an_image(kind):
    # An image of its own: other tests may use the engine at the same time.
    with derived_image(BUSYBOX_IMAGE, f"LABEL of={uuid.uuid4().hex}", files={}) as image:
        with kind.box(image=image, workdir=f"/{uuid.uuid4().hex}"):
            pass
        assert docker_output("ps", "--all", "--quiet", "--filter", f"ancestor={image}") == ""


def test_engine_that_is_away_is_told_in_one_line(tmp_path, runtime_folder):
    config = DockerConfig(
        base_url=f"unix://{tmp_path}/none.sock", bundle_dir=runtime_folder / "bundles", state_dir=tmp_path
    )
    runtime = DockerRuntime(config)
    with pytest.raises(RuntimeUnavailableError, match="start the Docker engine"):
        runtime.check()
    with pytest.raises(DaemonError):
        runtime.list()
    # A socket left open is found by the collector, and its warning is an error.
    gc.collect()
