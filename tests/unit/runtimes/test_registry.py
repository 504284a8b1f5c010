import pytest
from pydantic import TypeAdapter, ValidationError

from core.errors import NotSupportedError
from runtimes.docker import DockerRuntime
from runtimes.local.runtime import LocalRuntime
from runtimes.registry import RUNTIME_NAMES, RuntimeConfig, build_runtime, from_config, open_image_store


@pytest.mark.parametrize("name", RUNTIME_NAMES)
def test_every_name_builds_a_runtime_and_touches_nothing(name, tmp_path):
    runtime = build_runtime(name, tmp_path / "runtimes")
    assert runtime.name == name
    assert list(tmp_path.iterdir()) == []
    runtime.close()


def test_docker_runtime_has_what_it_is_given_instead_of_its_defaults(tmp_path):
    runtime = build_runtime("docker", tmp_path, docker={"oci_runtime": "runsc"})
    assert isinstance(runtime, DockerRuntime)
    assert runtime.rules().oci_runtime == "runsc"
    runtime.close()


def test_commands_open_the_store_in_the_form_that_the_runtime_uses(tmp_path):
    runtime = build_runtime("local", tmp_path)
    assert isinstance(runtime, LocalRuntime)
    store = open_image_store(tmp_path)
    assert (store._folder, store._as_root) == (tmp_path / "local" / "images", runtime._as_root)
    runtime.close()


def test_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(NotSupportedError, match="local, docker, fake"):
        build_runtime("kvm", tmp_path)


def test_config_chooses_its_runtime_by_type(tmp_path):
    read = TypeAdapter(RuntimeConfig).validate_python
    config = read({"type": "local", "state_dir": tmp_path, "bundle_dir": tmp_path, "host_paths": ["/opt"]})
    assert from_config(config).name == "local"
    assert from_config(read({"type": "fake"})).name == "fake"


@pytest.mark.parametrize(
    "document",
    [
        {"type": "fake", "x": 1},
        {"type": "kvm"},
        {"type": "local"},
        {"type": "local", "state_dir": "/a", "bundle_dir": "/b", "uid_base": 0},
        {"type": "local", "state_dir": "/a", "bundle_dir": "/b", "cgroup_parent": "../up"},
        {"type": "docker", "bundle_dir": "/b", "user": 0},
    ],
    ids=["unknown-key", "unknown-type", "missing", "root-uid", "path-trick", "root-user"],
)
def test_bad_config_is_refused(document):
    with pytest.raises(ValidationError):
        TypeAdapter(RuntimeConfig).validate_python(document)
