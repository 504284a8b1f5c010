from pathlib import Path

import pytest

from core.errors import SpecInvalidError
from runtimes.local.bwrap import arguments
from runtimes.local.diagnosis import advice
from runtimes.local.host_image import build_plan, write_etc
from runtimes.local.plan import Bind, Directory, Overlay, Plan, ProcFolder, TextFile, Tmpfs
from runtimes.local.plan_parts import Sources
from runtimes.local.roots import HOST_ROOT
from tests.support.sandboxes import make_spec

SOURCES = Sources(etc="/view/etc", bundle="/view/bundle", extra={"/opt/py": "/view/py"})


def plan(**changes):
    return build_plan(make_spec(image="host", **changes), HOST_ROOT, SOURCES, ("/.sbx/execd",), b"filter")


def options(made):
    return arguments(made, seccomp_fd=9, info_fd=7, block_fd=8, text_fds={}, disk="/disk")


def option_of(words, name):
    return words[words.index(name) + 1]


def test_every_guard_is_on_the_command_line():
    words = options(plan())
    for name in ("user", "pid", "ipc", "uts", "net"):
        assert f"--unshare-{name}" in words
    assert "--unshare-cgroup-try" in words
    assert {"--disable-userns", "--new-session", "--die-with-parent", "--clearenv", "--as-pid-1"} <= set(
        words
    )
    assert option_of(words, "--cap-drop") == "ALL"
    assert (option_of(words, "--uid"), option_of(words, "--gid")) == ("1000", "1000")
    assert option_of(words, "--seccomp") == "9"


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"seccomp": None}, "--seccomp"),
        ({"keep_capabilities": True}, "--cap-drop"),
        ({"nested_user_namespaces": True}, "--disable-userns"),
        ({"new_session": False}, "--new-session"),
        ({"namespaces": frozenset({"user", "mount"})}, "--unshare-net"),
    ],
)
def test_guard_comes_from_the_plan(change, missing):
    made = Plan(**{"mounts": (), "argv": ("x",), "workdir": "/", "seccomp": b"f", **change})
    seccomp_fd = None if made.seccomp is None else 9
    words = arguments(made, seccomp_fd=seccomp_fd, info_fd=7, block_fd=8, text_fds={}, disk="/disk")
    assert missing not in words


def test_whole_root_is_one_file_system_of_the_disk_limit():
    mounts = plan(limits={"disk_bytes": 5 << 20}).mounts
    assert mounts[0] == Tmpfs("/", 5 << 20)
    sizes = {mount.path: mount.size_bytes for mount in mounts if isinstance(mount, Tmpfs)}
    assert sizes.pop("/dev/shm") <= 5 << 20
    assert all(size <= 4096 for path, size in sizes.items() if path != "/")


def test_nothing_of_the_host_is_bound_but_system_folders():
    roots = {mount.source.split("/")[1] for mount in plan().mounts if isinstance(mount, Bind)}
    assert roots <= {"usr", "etc", "view", "dev", "lib", "lib64", "bin", "sbin"}
    devices = [
        mount.source for mount in plan().mounts if isinstance(mount, Bind) and mount.source.startswith("/dev")
    ]
    assert set(devices) <= {"/dev/null"}
    passwd = [mount for mount in plan().mounts if isinstance(mount, Bind) and "passwd" in mount.source]
    assert passwd == []


@pytest.mark.parametrize(
    "workdir",
    ["/etc/cron.d", "/proc/1", "/sys", "/dev/shm", "/usr/src/x", "/bin", "/.sbx", "/opt/py/x", "/tmp/../etc", "//proc"],
)  # fmt: skip
def test_workdir_in_a_folder_of_the_system_is_refused_whatever_the_host_has_there(workdir, monkeypatch):
    answers = set()
    for has_it in (True, False):
        monkeypatch.setattr(Path, "is_dir", lambda _path, has_it=has_it: has_it)
        with pytest.raises(SpecInvalidError, match="workdir") as caught:
            plan(workdir=workdir)
        assert caught.value.field == "workdir"
        answers.add(str(caught.value))
    assert len(answers) == 1


def test_workdir_elsewhere_is_made():
    assert plan(workdir="/testbed/x").mounts[-1] == Directory("/testbed/x")
    assert plan(workdir="/usrlocal").workdir == "/usrlocal"


@pytest.mark.parametrize("name", ["EXECD_ENVS", "EXECD_STRIP_NEWLINES", "SANDMILL_EXECUTION_ID"])
def test_job_cannot_set_what_is_execds(name):
    with pytest.raises(SpecInvalidError, match=name) as caught:
        plan(env={name: "x"})
    assert caught.value.field == "env"


def test_masks_come_after_what_they_cover():
    mounts = plan().mounts
    proc = mounts.index(ProcFolder())
    covers = [index for index, mount in enumerate(mounts) if getattr(mount, "path", "").startswith("/proc/")]
    assert covers
    assert min(covers) > proc


def test_extra_folder_is_shown_at_its_own_place():
    assert Bind("/view/py", "/opt/py") in plan().mounts


def test_environment_is_made_anew():
    environment = plan(env={"A": "1", "LD_PRELOAD": "x"}, workdir="/w").environment
    assert environment["A"] == "1"
    assert environment["LD_PRELOAD"] == ""
    assert environment["HOME"] == "/home/sandbox"
    assert set(environment) == {
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "PWD", "A", "LD_PRELOAD", "SANDMILL_ORIG_LD_PRELOAD",
    }  # fmt: skip


def test_accounts_are_the_sandboxes_own(tmp_path):
    write_etc(tmp_path)
    accounts = [line.split(":")[0] for line in (tmp_path / "passwd").read_text().splitlines()]
    assert accounts == ["root", "sandbox", "nobody"]
    assert not (tmp_path / "shadow").exists()
    assert "dns" not in (tmp_path / "nsswitch.conf").read_text()
    assert all(path.stat().st_mode & 0o022 == 0 for path in tmp_path.rglob("*") if not path.is_symlink())


@pytest.mark.parametrize(
    ("name", "value", "command"),
    [
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "apparmor_restrict_unprivileged_userns=0"),
    ],
)
def test_forbidding_setting_is_named_with_its_remedy(tmp_path, name, value, command):
    setting = tmp_path / name
    setting.parent.mkdir(parents=True)
    setting.write_text(value + "\n")
    assert command in advice(tmp_path)
    assert "\n" not in advice(tmp_path)


def test_without_a_setting_to_blame_the_other_ways_are_named(tmp_path):
    assert "docker" in advice(tmp_path).lower()
    assert Path("/proc/sys").exists()


def test_layers_and_texts_become_options_of_bwrap():
    text = TextFile("/etc/hosts", "x")
    made = Plan(mounts=(Overlay("/", ("/top", "/low"), (0, 0), 1), text), argv=("x",), workdir="/")
    words = arguments(made, seccomp_fd=None, info_fd=7, block_fd=8, text_fds={text: 11}, disk="/disk")
    start = words.index("--overlay-src")
    assert words[start : start + 12] == [
        "--overlay-src", "/low", "--overlay-src", "/top", "--overlay", "/disk/upper", "/disk/work", "/",
        "--perms", "0644", "--file", "11",
    ]  # fmt: skip
