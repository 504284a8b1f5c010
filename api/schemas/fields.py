"""Bounded strings, names and paths of the wire schemas. Every string that a client can send has a type from here."""

import posixpath
import re
from typing import Annotated

from pydantic import AfterValidator, Field

__all__ = [
    "ArgText",
    "ArtifactPath",
    "BlobDigest",
    "EnvMap",
    "FilePath",
    "FileText",
    "ImageRef",
    "JobKey",
    "Labels",
    "OctalMode",
    "ParserName",
    "StepName",
    "StepRef",
    "TestId",
    "Title",
    "WorkPath",
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

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _no_nul(text: str) -> str:
    if "\0" in text:
        message = "must not contain NUL"
        raise ValueError(message)
    return text


def _one_line(text: str) -> str:
    if _CONTROL.search(text):
        message = "must not contain control characters"
        raise ValueError(message)
    return text


def _check_absolute(path: str) -> str:
    _one_line(path)
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


Title = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_one_line)]
JobKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9._/@+-]{1,200}$")]
StepName = Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,40}$")]
StepRef = StepName
ParserName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,100}$")]
ImageRef = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}$")]
BlobDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
OctalMode = Annotated[str, Field(pattern=r"^0?[0-7]{3}$", description="Permission bits as an octal string.")]

ArgText = Annotated[str, Field(max_length=MAX_VALUE), AfterValidator(_no_nul)]
FileText = Annotated[str, Field(max_length=MAX_TEXT), AfterValidator(_no_nul)]
ScriptText = Annotated[str, Field(min_length=1, max_length=MAX_TEXT), AfterValidator(_no_nul)]
TestId = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_no_nul)]

WorkPath = Annotated[str, Field(max_length=MAX_PATH_BYTES), AfterValidator(_check_absolute)]
FilePath = Annotated[WorkPath, AfterValidator(_check_not_reserved), AfterValidator(_check_is_file)]
ArtifactPath = Annotated[FilePath, AfterValidator(_check_glob)]

EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
EnvMap = Annotated[dict[EnvName, ArgText], Field(max_length=256)]
LabelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
LabelValue = Annotated[str, Field(max_length=255), AfterValidator(_one_line)]
Labels = Annotated[dict[LabelName, LabelValue], Field(max_length=64)]
