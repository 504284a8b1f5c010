"""specs/execd.yaml says what the daemon does: the same routes, fields, codes and names."""

import re
from pathlib import Path

from execd import errors, pty_client, requests
from execd.execution import EndReason, Execution
from execd.execution_routes import status_document
from execd.launch import StartFailure
from execd.limits import Limits
from execd.options import Options
from execd.outputs import OutputBudget, OutputLog
from execd.reaper import Reaper
from execd.service import Service

SPEC = (Path(__file__).parents[3] / "specs" / "execd.yaml").read_text()


def block(start: str, indent: int) -> str:
    """The lines below a key, as far as they are indented more than the key."""
    found = re.search(
        rf"^ {{{indent}}}{re.escape(start)}:\n((?: {{{indent + 1}}}.*\n|\n)*)", SPEC, re.MULTILINE
    )
    assert found, start
    return found[1]


def methods_of(path: str) -> set[str]:
    """The methods of a path, be it documented by a reference to another path."""
    text = block(path, 2)
    reference = re.search(r'^    \$ref: "#/paths/(\S+)"$', text, re.MULTILINE)
    if reference:
        return methods_of(reference[1].replace("~1", "/"))
    methods = re.findall(r"^    (get|post|put|delete|patch|x-any-method):$", text, re.MULTILINE)
    return {"*" if method == "x-any-method" else method.upper() for method in methods}


def test_the_routes_are_those_of_the_daemon() -> None:
    routes = Service(Options(), {}, Limits(), Reaper()).routes
    documented = {path: methods_of(path) for path in re.findall(r"^  (/\S*):$", SPEC, re.MULTILINE)}
    assert documented == {path: set(methods) for path, methods in routes.router.paths().items()}


def test_the_fields_of_a_command_are_those_it_takes() -> None:
    documented = re.findall(r"^        (\w+): ", block("RunCommand", 4), re.MULTILINE)
    assert sorted(documented) == sorted(requests._FIELDS)


def test_the_fields_of_a_run_in_a_session_are_those_it_takes() -> None:
    documented = re.findall(r"^        (\w+): ", block("RunInSession", 4), re.MULTILINE)
    assert sorted(documented) == sorted(requests.SESSION_RUN_FIELDS)


def test_the_facts_of_a_status_are_those_it_gives() -> None:
    documented = re.findall(r"^        (\w+): ", block("CommandStatus", 4), re.MULTILINE)
    failed = Execution("0", requests.CommandRequest(), OutputLog(OutputBudget()))
    failed.fail_to_start("no", StartFailure.OTHER)
    assert sorted(documented) == sorted(status_document(failed))


def test_the_fields_of_a_terminal_are_those_it_takes() -> None:
    documented = re.findall(r"^        (\w+): ", block("CreatePty", 4), re.MULTILINE)
    assert sorted(documented) == sorted(requests._PTY_FIELDS)


def test_the_frames_of_a_terminal_are_those_it_takes() -> None:
    frames = {
        title: set(re.findall(r"(\w+): \{", properties)) - {"type"}
        for title, properties in re.findall(
            r"title: (\w+),.* properties: \{(.*)\}", block("PtyClientFrame", 4)
        )
    }
    assert frames == {name: set(fields) for name, fields in pty_client._FIELDS.items()}


def test_the_reasons_are_those_of_the_daemon() -> None:
    (documented,) = re.findall(r"enum: \[(.*?)\]", block("EndReason", 4))
    assert documented.split(", ") == [reason.value for reason in EndReason]


def test_the_kinds_of_failed_starts_are_those_of_the_daemon() -> None:
    (documented,) = re.findall(r"enum: \[(.*?)\]", block("StartFailure", 4))
    assert documented.split(", ") == [kind.value for kind in StartFailure]


def test_every_error_code_of_these_routes_is_documented() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__ if name != "error_from_os"]
    outside_of_routes = {"NOT_FOUND", "METHOD_NOT_ALLOWED"}
    for kind in kinds:
        assert kind.code in outside_of_routes or re.search(rf"\b{kind.code}\b", SPEC), kind.code


def test_every_reference_has_its_target() -> None:
    for kind, name in re.findall(r'\$ref: "#/components/(\w+)/(\w+)"', SPEC):
        assert re.search(rf"^    {name}:", block(kind, 2), re.MULTILINE), name
