"""Every code of the protocol's catalogue, section 1.17 (VOLUME: 1.9): which test provokes it, or why it cannot happen.

A file and a test of it; `tests/integration/` stands before each.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SOURCES = ("api", "ingress", "services", "traffic", "workers")
_CODE = re.compile(r'"((?:DOCKER|FSB|GENERAL|KUBERNETES|SANDBOX|SNAPSHOT|VOLUME)::[A-Z_]+)"')

CALLS, CREATES = "api/test_wire_calls.py", "api/test_wire_create.py"
NODE, POOLS, SNAPSHOTS = "worker/test_sessions.py", "api/test_pools.py", "api/test_snapshots.py"
PROXY = "ingress/test_server_proxy.py"
FAILED_START = (NODE, "test_start_that_fails_says_why_and_holds_nothing")
BAD_VOLUME = (CREATES, "test_volume_that_is_wrong_is_refused")

PROVOKED = {
    "MISSING_API_KEY": (CALLS, "test_key_is_needed_and_the_refusal_says_which_way_it_is_wrong"),
    "INVALID_API_KEY": (CALLS, "test_key_is_needed_and_the_refusal_says_which_way_it_is_wrong"),
    "INVALID_METADATA_FORMAT": (CALLS, "test_metadata_filter_that_is_none_is_refused"),
    "INVALID_METADATA_LABEL": (CREATES, "test_our_own_labels_are_reserved"),
    "BACKEND_CONNECTION_FAILED": (PROXY, "test_a_node_whose_ingress_is_away_is_a_502"),
    "BACKEND_TIMEOUT": (PROXY, "test_a_program_that_does_not_answer_in_time_is_a_504"),
    "BACKEND_RESPONSE_FAILED": (PROXY, "test_what_the_ingress_says_comes_as_clients_read_it"),
    "MISSING_OR_INVALID_SECURE_ACCESS": (PROXY, "test_a_secure_sandbox_wants_its_token_as_well"),
    "DIAGNOSTICS_SCOPE_UNSUPPORTED": ("api/test_diagnostics.py", "test_what_cannot_be_asked_is_refused"),
    "DOCKER::SANDBOX_NOT_FOUND": (CALLS, "test_foreign_and_unknown_ones_look_alike"),
    "DOCKER::SANDBOX_IMAGE_PULL_FAILED": FAILED_START,
    "DOCKER::SANDBOX_START_FAILED": FAILED_START,
    "DOCKER::SANDBOX_NOT_RUNNING": (NODE, "test_pause_and_resume"),
    "DOCKER::SANDBOX_PAUSE_FAILED": (NODE, "test_pause_that_fails_is_told_and_leaves_it_running"),
    "DOCKER::SANDBOX_NOT_PAUSED": (NODE, "test_pause_and_resume"),
    "DOCKER::SANDBOX_RESUME_FAILED": (NODE, "test_resume_that_fails_is_told_and_leaves_it_paused"),
    "DOCKER::INVALID_EXPIRATION": (CALLS, "test_expiry_that_cannot_be_is_refused"),
    "DOCKER::INVALID_ENTRYPOINT": (CREATES, "test_entrypoint"),
    "DOCKER::INVALID_PORT": (CALLS, "test_port_out_of_range_is_refused"),
    "DOCKER::NETWORK_MODE_ENDPOINT_UNAVAILABLE": (NODE, "test_endpoint_where_no_ingress_runs_is_told"),
    "KUBERNETES::POD_IP_NOT_AVAILABLE": (
        CALLS,
        "test_endpoint_of_one_that_waits_is_the_refusal_that_clients_repeat",
    ),
    "KUBERNETES::POOL_NOT_FOUND": (POOLS, "test_a_pool_is_made_looked_at_changed_and_deleted"),
    "KUBERNETES::POOL_ALREADY_EXISTS": (POOLS, "test_a_name_in_use_and_another_tenants_pool"),
    "KUBERNETES::POOL_API_ERROR": (POOLS, "test_too_many_pools_are_refused"),
    "KUBERNETES::POOL_CAPACITY_EXHAUSTED": (
        POOLS,
        "test_a_full_pool_answers_429_soon_and_says_what_to_do",
    ),
    "FSB::API_NOT_SUPPORTED": (CALLS, "test_templates_are_refused_clearly"),
    "SANDBOX::API_NOT_SUPPORTED": (CALLS, "test_network_policy_is_refused_clearly"),
    "SANDBOX::INVALID_METADATA_LABEL": (CALLS, "test_metadata_that_is_bad_changes_nothing"),
    "SANDBOX::INVALID_PARAMETER": ("api/test_wire_offers.py", "test_more_gpus_than_any_node_has_are_refused"),
    "SANDBOX::INTERNAL_ERROR": (NODE, "test_start_that_nobody_foresaw_to_fail_blames_us_and_holds_nothing"),
    "SNAPSHOT::INVALID_SOURCE_STATE": (SNAPSHOTS, "test_source_has_to_run_or_stand_still"),
    "SNAPSHOT::NOT_FOUND": (SNAPSHOTS, "test_others_see_none_of_it"),
    "SNAPSHOT::INVALID_STATE": (
        SNAPSHOTS,
        "test_one_that_is_being_made_can_neither_be_deleted_nor_restored",
    ),
    "SNAPSHOT::NOT_READY": (SNAPSHOTS, "test_one_that_is_being_made_can_neither_be_deleted_nor_restored"),
    "SNAPSHOT::INVALID_RESTORE_CONFIG": (SNAPSHOTS, "test_restore_must_fit_the_snapshot"),
    "SNAPSHOT::NOT_IMPLEMENTED": (SNAPSHOTS, "test_node_that_can_make_none_is_told_at_once"),
    "VOLUME::HOST_PATH_NOT_ALLOWED": (
        "api/test_wire_offers.py",
        "test_oci_runtime_and_folders_are_held_against_nodes_that_take_work",
    ),
    "GENERAL::UNKNOWN_ERROR": (CALLS, "test_failure_of_ours_has_the_shape_too"),
    "VOLUME::INVALID_NAME": BAD_VOLUME,
    "VOLUME::DUPLICATE_NAME": (CREATES, "test_volumes"),
    "VOLUME::INVALID_BACKEND": BAD_VOLUME,
    "VOLUME::INVALID_MOUNT_PATH": BAD_VOLUME,
    "VOLUME::INVALID_SUB_PATH": BAD_VOLUME,
    "VOLUME::INVALID_HOST_PATH": BAD_VOLUME,
    "VOLUME::INVALID_PVC_NAME": BAD_VOLUME,
    "VOLUME::UNSUPPORTED_BACKEND": BAD_VOLUME,
    "VOLUME::PVC_NOT_FOUND": (NODE, "test_volume_that_no_node_can_give_is_the_requests_fault"),
    # Ours: the protocol has no word for them.
    "SANDBOX::CONFLICT": (CREATES, "test_repeated_create_under_one_key_makes_one"),
    "SANDBOX::QUOTA_EXCEEDED": (CREATES, "test_queue_that_is_full_says_so_at_once"),
    "SANDBOX::UNAVAILABLE": (
        "api/test_deadline.py",
        "test_frozen_database_is_told_to_official_clients_in_their_words",
    ),
    "SNAPSHOT::QUOTA_EXCEEDED": (SNAPSHOTS, "test_tenant_has_a_bounded_number_of_them"),
}

_LATER = "the node finds it out after the answer: the sandbox is Failed with DOCKER::SANDBOX_START_FAILED and a message"
_SUB_PATH = "the node finds it out after the answer: the sandbox is Failed with VOLUME::INVALID_SUB_PATH"
_ASYNC = "a snapshot is accepted at once, and its state says what became of it"
_FSB, _KUBERNETES = "there are no templates", "there is no Kubernetes"
_OSSFS = "OSSFS is refused as a backend"

CANNOT_HAPPEN = {
    "TENANT_PROVIDER_UNAVAILABLE": "keys are rows of our own database: SANDBOX::UNAVAILABLE",
    "DOCKER::INITIALIZATION_ERROR": "the API has no engine; a worker without one does not start",
    "DOCKER::SANDBOX_QUERY_FAILED": "the API asks no engine: SANDBOX::UNAVAILABLE",
    "DOCKER::SNAPSHOT_IMAGE_REMOVE_FAILED": "a delete is accepted, and tried until it is done",
    "DOCKER::SANDBOX_DELETE_FAILED": "a delete is accepted, and tried until it is done",
    "DOCKER::EXPIRATION_NOT_EXTENDED": "a renewal may shorten",
    "DOCKER::SANDBOX_EXECD_START_FAILED": _LATER,
    "DOCKER::SANDBOX_EXECD_DISTRIBUTION_FAILED": "execd lies on the node before a worker starts",
    "DOCKER::SANDBOX_BOOTSTRAP_INSTALL_FAILED": "nothing is installed in a sandbox",
    "KUBERNETES::INITIALIZATION_ERROR": _KUBERNETES,
    "KUBERNETES::SANDBOX_NOT_FOUND": _KUBERNETES,
    "KUBERNETES::POD_FAILED": _KUBERNETES,
    "KUBERNETES::POD_READY_TIMEOUT": _KUBERNETES,
    "KUBERNETES::API_ERROR": _KUBERNETES,
    "KUBERNETES::QUOTA_EXCEEDED": _KUBERNETES,
    "KUBERNETES::INVALID_STATE": _KUBERNETES,
    "KUBERNETES::POOL_NOT_SUPPORTED": "there are pools on every runtime",
    "FSB::SANDBOX_NOT_FOUND": _FSB,
    "FSB::POOL_NOT_FOUND": _FSB,
    "FSB::TEMPLATE_NOT_FOUND": _FSB,
    "FSB::TEMPLATE_CONFLICT": _FSB,
    "FSB::API_ERROR": _FSB,
    "SANDBOX::UNKNOWN_ERROR": "what nobody foresaw is GENERAL::UNKNOWN_ERROR",
    "SANDBOX::UNSUPPORTED_POOL_REF": "there are pools on every runtime",
    "SNAPSHOT::RUNTIME_CREATE_FAILED": _ASYNC,
    "SNAPSHOT::RUNTIME_CREATE_CONFLICT": _ASYNC,
    "SNAPSHOT::RUNTIME_PREFLIGHT_FAILED": _ASYNC,
    "SNAPSHOT::UNSUPPORTED_RUNTIME": _ASYNC,
    "VOLUME::HOST_PATH_NOT_FOUND": _LATER,
    "VOLUME::HOST_PATH_CREATE_FAILED": _LATER,
    "VOLUME::PVC_INSPECT_FAILED": _LATER,
    "VOLUME::PVC_SUBPATH_UNSUPPORTED_DRIVER": _SUB_PATH,
    "VOLUME::INVALID_OSSFS_VERSION": _OSSFS,
    "VOLUME::INVALID_OSSFS_ENDPOINT": _OSSFS,
    "VOLUME::INVALID_OSSFS_BUCKET": _OSSFS,
    "VOLUME::INVALID_OSSFS_OPTION": _OSSFS,
    "VOLUME::INVALID_OSSFS_CREDENTIALS": _OSSFS,
    "VOLUME::INVALID_OSSFS_MOUNT_ROOT": _OSSFS,
    "VOLUME::OSSFS_PATH_NOT_FOUND": _OSSFS,
    "VOLUME::OSSFS_MOUNT_FAILED": _OSSFS,
    "VOLUME::OSSFS_UNMOUNT_FAILED": _OSSFS,
}


@pytest.mark.parametrize("code", PROVOKED)
def test_code_is_named_by_the_test_that_provokes_it(code):
    path, name = PROVOKED[code]
    texts = texts_of(definitions(path), name)
    # Volumes' codes are put together there.
    assert {code, code.removeprefix("VOLUME::")} & texts


def test_a_code_is_looked_for_in_the_test_and_what_it_names_and_nowhere_else():
    source = """
CASES = [("x", "OF A CONSTANT")]
ALSO: str = "OF ANOTHER"
@fixture
def made(): return "OF A FIXTURE"
def helper(): return ALSO
@parametrize(CASES)
def test_one(made):
    \"\"\"IN WORDS\"\"\"
    # AS A COMMENT
    assert helper() == f"{made}: OWN"
def test_two(): assert "OF ANOTHER TEST"
"""
    found = texts_of(definitions_in(source), "test_one")
    assert found == {"x", "OF A CONSTANT", "OF ANOTHER", "OF A FIXTURE", ": OWN"}


def test_a_test_that_is_not_there_names_nothing():
    assert texts_of(definitions_in("def other(): return 'X'"), "test_gone") == set()


@cache
def definitions(path: str) -> dict[str, ast.stmt]:
    """What a file of `tests/integration` defines, by name."""
    return definitions_in((REPOSITORY / "tests/integration" / path).read_text())


def definitions_in(source: str) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
            found.update(dict.fromkeys(names, node))
    return found


def texts_of(defined: dict[str, ast.stmt], name: str) -> set[str]:
    """The strings of a test, of its parameters, and of the helpers, fixtures and constants that it names."""
    texts: set[str] = set()
    seen: set[str] = set()
    left = [name]
    while left:
        node = defined.get(found := left.pop())
        if node is None or found in seen:
            continue
        seen.add(found)
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                left.append(part.id)
            elif isinstance(part, ast.arg):
                left.append(part.arg)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                texts.add(part.value)
            elif isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
                part.value.value = None  # a docstring asserts nothing
    return texts


def test_code_that_is_used_is_in_the_table():
    used = {
        code
        for folder in SOURCES
        for path in (REPOSITORY / folder).rglob("*.py")
        for code in _CODE.findall(path.read_text())
    }
    assert used - PROVOKED.keys() == set()
    assert used & CANNOT_HAPPEN.keys() == set()
