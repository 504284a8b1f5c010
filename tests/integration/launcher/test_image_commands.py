import io
import json

import pytest

from launcher import cli
from tests.support.image_archives import Layout, docker_archive, file, folder, tar
from tests.support.registry import serve_registry


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command as a person would; gives exit code, standard output and standard error."""
    monkeypatch.setenv("SANDMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))

    def run(*words, stdin: str = "") -> tuple[object, str, str]:
        monkeypatch.setattr("sys.argv", ["launcher/cli.py", "image", *map(str, words)])
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code: object = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "tools.tar"
    path.write_bytes(tar(folder("bin"), file("bin/tool", b"x" * 3_000_000)))
    return path


def test_image_is_imported_listed_and_removed(run, archive):
    code, out, err = run("import", archive, "--name", "tools:1")
    assert (code, err) == (0, "")
    name, digest = out.split()
    assert name == "tools:1"
    listed = json.loads(run("list", "--json")[1])
    assert (listed["name"], listed["digest"], listed["size_bytes"]) == ("tools:1", digest, 3_000_000)
    table = run("list")[1].splitlines()
    assert table[0].split() == ["NAME", "DIGEST", "ARCHITECTURE", "SIZE"]
    assert table[1].split() == ["tools:1", digest[7:19], listed["architecture"], "2.9", "MiB"]
    assert run("remove", "tools:1") == (0, "", "")
    assert run("list", "--json")[:2] == (0, "")


def test_store_is_that_of_the_runtime(run, archive, tmp_path):
    run("import", archive)
    assert (tmp_path / "home" / "runtimes" / "local" / "images" / "layers").is_dir()


def test_archive_brings_its_own_name(run, tmp_path):
    (tmp_path / "save").write_bytes(docker_archive({"app:2": [tar(file("a"))]}))
    assert run("import", tmp_path / "save")[1].startswith("app:2 sha256:")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["import", "/nowhere.tar"], "/nowhere.tar: no such file or folder"),
        (["import", "/etc/hostname/x"], "/etc/hostname/x: no such file or folder"),
        (["import", "/" + "x" * 300], "cannot be read: File name too long"),
        (["import", "/dev/null"], "/dev/null is neither a file nor a folder"),
        (["import", "/etc/hostname", "--name", "host"], "name 'host:latest': 'host' is reserved"),
        (["pull", "host:1"], "reference 'host:1': 'host' is reserved"),
        (["import", "/etc/hostname", "--name", "x"], "tar"),
        (["import", "/etc/hostname", "--name", "X y"], "no image name"),
        (["remove", "nothing"], "no image 'nothing' in the store; there are: none"),
        (["pull", "127.0.0.1:1/x"], "registry 127.0.0.1:1 cannot be reached"),
        (["pull", "x", "--platform", "a b"], "no platform"),
    ],
)
def test_obstacle_is_one_line_on_stderr_and_exit_code_1(run, words, message):
    code, out, err = run(*words)
    assert (code, out) == (1, "")
    assert err.startswith("sandmill: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["pull", "x", "--username", "me"], ["pull", "x", "--password-stdin"], ["import"]]
)
def test_wrong_usage_is_exit_code_2(run, words):
    assert run(*words)[0] == 2


@pytest.mark.parametrize(("words", "path"), [([], "image"), (["pull"], "image pull")])
def test_usage_names_the_command_that_is_documented(run, words, path):
    assert run(*words, "--help")[1].strip().startswith(f"Usage: sandmill-server {path} ")


def test_pull_reads_the_password_from_stdin_and_tells_how_far_it_is(run, tmp_path):
    layout = Layout(tmp_path / "layout")
    layout.index(layout.manifest(tar(file("a", b"x")), tar(file("b"))))
    with serve_registry(layout.path, auth="bearer") as registry:
        name = f"{registry.address}/team/app"
        code, out, err = run("pull", name, "--username", "me", "--password-stdin", stdin="secret\n")
        assert (code, out.split()[0]) == (0, f"{name}:latest")
        stages = [
            "layer 1 of 2: download",
            "layer 1 of 2: unpack",
            "layer 2 of 2: download",
            "layer 2 of 2: unpack",
        ]
        assert [line.rpartition(" 0.0")[0] for line in err.splitlines()] == stages
        code, _, err = run("pull", name, "--username", "me", "--password-stdin", stdin="wrong\n")
        assert code == 1
        assert "registry auth failed" in err
        assert "wrong\n" not in err


def test_pull_uses_what_docker_login_saved(run, tmp_path):
    layout = Layout(tmp_path / "layout")
    layout.index(layout.manifest(tar(file("a", b"x"))))
    with serve_registry(layout.path, auth="basic") as registry:
        (tmp_path / "docker").mkdir()
        entry = {registry.address: {"username": "me", "password": "secret"}}
        (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": entry}))
        assert run("pull", f"{registry.address}/team/app")[0] == 0
