from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opensandbox.adapters.converter.env_entry import build_set_env_command

from execd.envs import CommandEnvironment, expand_directory, is_reserved_name, parse_env_file


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1\nB=two words\n", {"A": "1", "B": "two words"}),
        ("A=1\nA=2", {"A": "2"}),
        ("\n# comment\n#A=1\nnonsense\n=x\n1A=x\nA-B=x\n", {}),
        ("  export A=1\r\nB=\r\n", {"A": "1", "B": ""}),
        ("A='lit $X \\n \"q\"'\nB=1", {"A": 'lit $X \\n "q"', "B": "1"}),
        ("A='two\nlines\n'\nB=1", {"A": "two\nlines\n", "B": "1"}),
        ("A='X=hidden\nC=hidden'", {"A": "X=hidden\nC=hidden"}),
        ('A="q\\"\\\\\\n\\t\\r\\$X"', {"A": 'q"\\\n\t\r$X'}),
        ('A="\\x"', {"A": "\\x"}),
        ('A="$KNOWN ${KNOWN} $UNKNOWN."', {"A": "k k ."}),
        ("A=$KNOWN-${KNOWN}$", {"A": "k-k$"}),
        ("A=1\nB=$A$A\nB=$B$A", {"A": "1", "B": "111"}),
        ("A='not closed\nB=1", {"A": "'not closed", "B": "1"}),
        ('A="not closed\nB=1', {"A": '"not closed', "B": "1"}),
        ("A='closed' and more\nB=1", {"A": "'closed' and more", "B": "1"}),
        ("A=it's\nB=1", {"A": "it's", "B": "1"}),
        ("A='nul\0'\nB=1", {"B": "1"}),
        ("A=", {"A": ""}),
        ("A='", {"A": "'"}),
        ('A="\\', {"A": '"\\'}),
    ],
)
def test_entries(text: str, expected: dict[str, str]) -> None:
    assert parse_env_file(text, {"KNOWN": "k"}) == expected


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    for name, value in parse_env_file(text, {}).items():
        assert name
        assert "\0" not in value


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1, max_size=4))
def test_what_the_sdk_writes_is_read_back(values: list[str]) -> None:
    written = "".join(f"{entry_of_sdk(f'K{i}', value)}\n" for i, value in enumerate(values))
    found = parse_env_file(written, {})
    for i, value in enumerate(values):
        if "'" not in value or "$" not in value:  # the SDK's double-quoted form lets $NAME expand
            assert found[f"K{i}"] == value


def entry_of_sdk(key: str, value: str) -> str:
    """The line that the published SDK would append, taken out of the shell command it builds."""
    word = (
        build_set_env_command(key, value).rpartition("printf '%s\\n' ")[2].rpartition(' >> "$EXECD_ENVS"')[0]
    )
    return word[1:-1].replace("'\\''", "'")


def test_secrets_stay_and_originals_are_put_back() -> None:
    own = {
        "EXECD_ACCESS_TOKEN": "secret",
        "EXECD_ENVS": "/no/such/file",
        "LD_PRELOAD": "",
        "LD_BIND_NOW": "1",
        "SANDMILL_ORIG_LD_LIBRARY_PATH": "/image/lib",
        "LD_LIBRARY_PATH": "",
        "X": "x",
    }
    env = CommandEnvironment(own).compose({"X": "y"}, execution_id="id")
    assert env.pop("PATH")
    assert env == {
        "EXECD_ENVS": "/no/such/file",
        "LD_BIND_NOW": "1",
        "LD_LIBRARY_PATH": "/image/lib",
        "SANDMILL_EXECUTION_ID": "id",
        "X": "y",
    }


def test_file_is_read_unless_the_file_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "envs"
    file.write_text("A=file\nPATH=/nowhere\nBASH_ENV=/x\nSANDMILL_EXECUTION_ID=x\nEXECD_ACCESS_TOKEN=x\n")
    own = {"EXECD_ENVS": str(file), "PATH": "/bin", "A": "own"}
    obeying = CommandEnvironment(own).compose({}, execution_id="id")
    assert obeying == {
        "EXECD_ENVS": str(file),
        "PATH": "/nowhere",
        "BASH_ENV": "/x",
        "A": "file",
        "SANDMILL_EXECUTION_ID": "id",
    }
    sealed = CommandEnvironment(own, reads_file=False).compose({}, execution_id="id")
    assert sealed == {"PATH": "/bin", "A": "own", "SANDMILL_EXECUTION_ID": "id"}


@pytest.mark.parametrize("name", ["SANDMILL_EXECUTION_ID", "SANDMILL_ORIG_PATH", "EXECD_ENVS", "EXECD_X"])
def test_names_of_execd_itself_are_reserved(name: str) -> None:
    assert is_reserved_name(name)
    assert not is_reserved_name(name.lower())
    assert not is_reserved_name("X" + name)


def test_directories_expand() -> None:
    env = {"HOME": "/h", "A": "/a", "B": "b"}
    assert expand_directory("~", env, home="/other") == "/h"
    assert expand_directory("~/x", {}, home="/other") == "/other/x"
    assert expand_directory("$A/${B}c", env, home="/") == "/a/bc"
    assert expand_directory("/x/~/$", env, home="/") == "/x/~/$"
    with pytest.raises(KeyError, match="NOPE"):
        expand_directory("$NOPE", env, home="/")


@pytest.mark.parametrize(
    ("present", "writable", "expected"),
    [
        ("/", "/", "/opt/opensandbox/.env"),
        ("/opt", "/", "/tmp/.opensandbox/.env"),
        ("/opt", "/opt", "/opt/opensandbox/.env"),
    ],
    ids=["can be made", "cannot be made", "its parent can be written"],
)
def test_the_file_is_where_it_can_be_written(
    monkeypatch: pytest.MonkeyPatch, present: str, writable: str, expected: str
) -> None:
    monkeypatch.setattr("execd.envs.os.path.exists", lambda path: path in ("/", present))
    monkeypatch.setattr("execd.envs.os.access", lambda path, mode: path == writable)
    assert CommandEnvironment({}).env_file == expected
    assert CommandEnvironment({"EXECD_ENVS": "/x"}).env_file == "/x"
