import json

import pytest
from typer.testing import CliRunner

from launcher import cli
from launcher.errors import StartupError


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    for name in ("SANDMILL_API_PORT", "SANDMILL_DATABASE_URL", "SANDMILL_REDIS_URL", "FLOWER_BASIC_AUTH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:1/x")
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")


def run_main(monkeypatch, capsys, *words: str) -> tuple[object, str, str]:
    monkeypatch.setattr("sys.argv", ["sandmill-server", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    output = capsys.readouterr()
    return caught.value.code, output.out, output.err


@pytest.mark.parametrize("name", ["DATABASE_URL", "REDIS_URL"])
@pytest.mark.parametrize("command", ["api", "scheduler", "worker", "migrate"])
def test_missing_setting_is_one_line_that_names_it(monkeypatch, capsys, command, name):
    monkeypatch.delenv(name)
    code, out, err = run_main(monkeypatch, capsys, command)
    assert (code, out) == (1, "")
    assert err.startswith(f"sandmill: {name}: must be set (")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["up", "doctor"])
def test_wrong_setting_of_any_program_is_told_before_anything_is_touched(
    monkeypatch, capsys, tmp_path, command
):
    monkeypatch.setenv("SANDMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SANDMILL_RUNTIMES", "local")
    code, out, err = run_main(monkeypatch, capsys, command)
    assert (code, out) == (1, "")
    assert err.startswith("sandmill: SANDMILL_RUNTIMES: must be a JSON list of ")
    assert err.endswith(', such as ["local", "docker"], not \'local\'\n')
    assert not (tmp_path / "home").exists()


def test_flower_without_a_password_is_refused(monkeypatch, capsys):
    code, _, err = run_main(monkeypatch, capsys, "flower")
    assert code == 1
    assert "set FLOWER_BASIC_AUTH=user:password" in err


@pytest.mark.parametrize(
    "login", ["sandmill:", "sandmill:sandmill", "admin:Admin", "a:good-one-81,b:changeme"]
)
def test_flower_with_a_password_that_everybody_knows_is_refused(monkeypatch, capsys, login):
    monkeypatch.setenv("FLOWER_BASIC_AUTH", login)
    code, _, err = run_main(monkeypatch, capsys, "flower")
    assert code == 1
    assert (
        err == "sandmill: FLOWER_BASIC_AUTH: must have a password of its own, not one that everybody knows\n"
    )


@pytest.mark.parametrize(
    "words",
    [["up", "--port", "65536"], ["up", "--port", "x"], ["up", "extra"], ["key", "create"], ["nonsense"]],
)
def test_wrong_usage_is_exit_code_2(words):
    assert CliRunner().invoke(cli.app, words).exit_code == 2


def test_message_of_several_lines_is_folded_to_one(monkeypatch, capsys):
    def fail(prog_name: str) -> None:
        raise StartupError(f"{prog_name}: first\n  second")

    monkeypatch.setattr(cli, "app", fail)
    assert run_main(monkeypatch, capsys)[2] == "sandmill: sandmill-server: first second\n"


class Running:
    """The facts of a stack."""

    api_url = "http://127.0.0.1:1"
    api_key = "sm_key"
    ingress_url = "http://127.0.0.1:3"

    def __init__(self, flower_url: str | None) -> None:
        self.flower_url = flower_url


@pytest.mark.parametrize("flower_url", [None, "http://user:word@127.0.0.1:2"])
def test_addresses_are_one_line_for_programs_and_for_people(capsys, flower_url):
    cli._print_addresses(Running(flower_url), as_json=True)
    cli._print_addresses(Running(flower_url), as_json=False)
    for_programs, for_people = capsys.readouterr().out.splitlines()
    assert json.loads(for_programs) == {
        "api": "http://127.0.0.1:1",
        "api_key": "sm_key",
        "ingress": "http://127.0.0.1:3",
        "flower": flower_url,
    }
    assert "http://127.0.0.1:1" in for_people
    assert "sm_key" in for_people
    assert "http://127.0.0.1:3" in for_people
    assert ("flower" in for_people) == (flower_url is not None)


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["up"],
            ["migrate"],
            ["doctor"],
            ["verify"],
            ["api"],
            ["scheduler"],
            ["worker"],
            ["flower"],
            ["health"],
            ["ingress"],
        ),
        *(["key", "create"], ["image", "list"], ["image", "pull"], ["image", "import"], ["image", "remove"]),
    ],
    ids=" ".join,
)
def test_every_command_that_reads_settings_takes_a_file_and_says_so(words, tmp_path):
    shown = CliRunner().invoke(cli.app, [*words, "--help"])
    assert shown.exit_code == 0
    assert "--config PATH" in shown.output
    missing = CliRunner().invoke(cli.app, [*words, "--config", str(tmp_path / "none")])
    assert missing.exit_code == 2
    assert "there is no file" in missing.output


def test_the_file_of_the_option_is_read(monkeypatch, capsys, tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("[worker]\nslots = 0\n")
    monkeypatch.setenv("SANDMILL_CONFIG", "/dev/null")
    code, _, err = run_main(monkeypatch, capsys, "worker", "--config", str(path))
    assert (code, err) == (
        1,
        f"sandmill: {path}, line 2: [worker] slots: must be a whole number from 1 to 128, not 0\n",
    )


def test_every_command_says_what_it_does():
    shown = CliRunner().invoke(cli.app, ["--help"]).output
    for command in cli.app.registered_commands:
        name = command.name or command.callback.__name__
        assert f"  {name} " in shown
        first = (command.callback.__doc__ or "").split()[:2]
        assert " ".join(first) in " ".join(shown.split())
