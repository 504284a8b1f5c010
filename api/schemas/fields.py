"""Bounded strings, names and paths of the wire schemas. Every string that a client can send has a type from here."""

import posixpath
import re
from typing import Annotated

from pydantic import AfterValidator, Field

from services.snapshots import LIVE_SNAPSHOT_PREFIX

__all__ = [
    "HEX_DIGEST_PATTERN",
    "MATRIX_NAME",
    "PATTERN_WORDS",
    "PRINTABLE_PATTERN",
    "ArgText",
    "ArtifactPath",
    "BlobDigest",
    "EnvMap",
    "FilePath",
    "FileText",
    "ImageRef",
    "JobKey",
    "LabelCaps",
    "Labels",
    "NodeLabels",
    "OctalMode",
    "ParserName",
    "QueueName",
    "ResourceName",
    "RewardKey",
    "StepName",
    "StepRef",
    "TenantName",
    "TestId",
    "Title",
    "WorkPath",
    "one_line",
]

MAX_TEXT = 1 << 20
"""Characters of one script or of one inline file. What is larger goes through POST /v1/blobs."""
MAX_VALUE = 64 << 10
"""Characters of any other text; half of what Linux takes in one argument or environment string (128 KiB)."""
MAX_PATH_BYTES = 4095
MAX_NAME_BYTES = 255

# Mounted read-only or made by the runtime: a file put there would fail late or hide a part of the sandbox itself.
RESERVED_ROOTS = (
    "/.sbx", "/bin", "/dev", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr",
)  # fmt: skip

RESERVED_ENV_NAMES = frozenset({"TRIAL_INDEX", "TRIAL_SEED"})
RESERVED_ENV_PREFIXES = ("SANDMILL_", "EXECD_")
"""A job's own value would be overwritten, or change how the daemon in the sandbox works."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _no_nul(text: str) -> str:
    if "\0" in text:
        message = "must not contain NUL"
        raise ValueError(message)
    return text


def one_line(text: str) -> str:
    """Refuse control characters."""
    if _CONTROL.search(text):
        message = "must not contain control characters"
        raise ValueError(message)
    return text


def _check_absolute(path: str) -> str:
    one_line(path)
    if not path.startswith("/"):
        message = "must be an absolute path"
    elif ".." in path.split("/"):
        message = "must not contain '..'"
    elif len(path.encode()) > MAX_PATH_BYTES or any(
        len(p.encode()) > MAX_NAME_BYTES for p in path.split("/")
    ):
        message = f"must be at most {MAX_PATH_BYTES} bytes, {MAX_NAME_BYTES} per part"
    # normpath keeps two leading slashes, as POSIX allows; here they are as wrong as any other doubled slash.
    elif posixpath.normpath(path) != path or path.startswith("//"):
        message = f"must be normalised, as in {posixpath.normpath('/' + path.lstrip('/'))!r}"
    else:
        return path
    raise ValueError(message)


def _check_not_reserved(path: str) -> str:
    for root in RESERVED_ROOTS:
        if path == root or path.startswith(root + "/"):
            message = f"must not lie under {root}"
            raise ValueError(message)
    return path


def _check_is_file(path: str) -> str:
    if path == "/":
        message = "must name a file"
        raise ValueError(message)
    return path


def _check_glob(path: str) -> str:
    folder = posixpath.dirname(path)
    if re.search(r"[*?\[]", folder):
        message = "only the last part may hold a pattern"
        raise ValueError(message)
    return path


def _check_not_ours(name: str) -> str:
    if name in RESERVED_ENV_NAMES or name.startswith(RESERVED_ENV_PREFIXES):
        message = "is set by Sandmill itself: choose another name"
        raise ValueError(message)
    return name


def _check_not_of_a_sandbox(image: str) -> str:
    """Refuse what a node calls the snapshots of live sandboxes: it does not know whose they are."""
    if image.startswith(LIVE_SNAPSHOT_PREFIX):
        message = "is a snapshot of a live sandbox: only a sandbox is made from it, by its snapshotId"
        raise ValueError(message)
    return image


_JOB_KEY = r"^[A-Za-z0-9._/@+-]{1,200}$"
_STEP_NAME = r"^[a-z0-9_-]{1,40}$"
_PARSER_NAME = r"^[A-Za-z0-9._:-]{1,100}$"
_IMAGE_REF = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}$"
_BLOB_DIGEST = r"^sha256:[0-9a-f]{64}$"
_OCTAL_MODE = r"^0?[0-7]{3}$"
_REWARD_KEY = r"^[A-Za-z0-9._-]{1,100}$"
_RESOURCE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
_ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
_QUEUE_NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
_LABEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"
_TENANT_NAME = r"^[A-Za-z0-9._-]{1,100}$"
MATRIX_NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,39}$"
HEX_DIGEST_PATTERN = r"^[0-9a-f]{64}$"
PRINTABLE_PATTERN = r"^[\x21-\x7e]+$"

PATTERN_WORDS = {
    _JOB_KEY: "must be 1 to 200 characters of A-Z a-z 0-9 . _ / @ + -",
    _STEP_NAME: "must be 1 to 40 characters of a-z 0-9 _ -",
    _PARSER_NAME: "must be 1 to 100 characters of A-Z a-z 0-9 . _ : -",
    _IMAGE_REF: "must be an image name: a letter or digit, then at most 511 of A-Z a-z 0-9 . _ / : @ -",
    _BLOB_DIGEST: "must be 'sha256:' and 64 lowercase hex digits",
    _OCTAL_MODE: "must be permission bits as three octal digits, as in '0644'",
    _REWARD_KEY: "must be 1 to 100 characters of A-Z a-z 0-9 . _ -",
    _RESOURCE_NAME: "must be a name: a letter or digit, then at most 99 of A-Z a-z 0-9 . _ -",
    _ENV_NAME: "must be a variable name: a letter or _, then at most 127 letters, digits and _",
    _QUEUE_NAME: "must be a queue name: a-z or a digit, then at most 62 of a-z 0-9 . _ -",
    _LABEL_NAME: "must be a label name: a letter or digit, then at most 62 of A-Z a-z 0-9 . _ / -",
    _TENANT_NAME: "must be 1 to 100 letters, digits, '.', '_' and '-'",
    MATRIX_NAME: "must be a name: a letter or _, then at most 39 letters, digits, _ and -",
    HEX_DIGEST_PATTERN: "must be 64 lowercase hex digits",
    PRINTABLE_PATTERN: "must be printable ASCII without blanks",
}
"""What is said about text that does not match: nobody should have to read an expression."""

Title = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(one_line)]
JobKey = Annotated[str, Field(pattern=_JOB_KEY)]
StepName = Annotated[str, Field(pattern=_STEP_NAME)]
StepRef = StepName
TenantName = Annotated[str, Field(pattern=_TENANT_NAME)]
ParserName = Annotated[str, Field(pattern=_PARSER_NAME)]
ImageRef = Annotated[str, Field(pattern=_IMAGE_REF), AfterValidator(_check_not_of_a_sandbox)]
BlobDigest = Annotated[str, Field(pattern=_BLOB_DIGEST)]
OctalMode = Annotated[str, Field(pattern=_OCTAL_MODE, description="Permission bits as an octal string.")]
QueueName = Annotated[str, Field(pattern=_QUEUE_NAME)]
ResourceName = Annotated[str, Field(pattern=_RESOURCE_NAME)]
RewardKey = Annotated[str, Field(pattern=_REWARD_KEY)]

ArgText = Annotated[str, Field(max_length=MAX_VALUE), AfterValidator(_no_nul)]
FileText = Annotated[str, Field(max_length=MAX_TEXT), AfterValidator(_no_nul)]
ScriptText = Annotated[str, Field(min_length=1, max_length=MAX_TEXT), AfterValidator(_no_nul)]
TestId = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_no_nul)]

WorkPath = Annotated[str, Field(max_length=MAX_PATH_BYTES), AfterValidator(_check_absolute)]
FilePath = Annotated[WorkPath, AfterValidator(_check_not_reserved), AfterValidator(_check_is_file)]
ArtifactPath = Annotated[FilePath, AfterValidator(_check_glob)]

EnvName = Annotated[str, Field(pattern=_ENV_NAME), AfterValidator(_check_not_ours)]
EnvMap = Annotated[dict[EnvName, ArgText], Field(max_length=256)]
LabelName = Annotated[str, Field(pattern=_LABEL_NAME)]
LabelValue = Annotated[str, Field(max_length=255), AfterValidator(one_line)]
Labels = Annotated[dict[LabelName, LabelValue], Field(max_length=64)]
NodeLabels = Annotated[dict[LabelName, LabelValue], Field(max_length=16)]
LabelCaps = Annotated[dict[LabelName, Annotated[int, Field(ge=1, le=100_000)]], Field(max_length=8)]
