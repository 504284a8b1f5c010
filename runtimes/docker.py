"""The `docker` runtime, plain form: one container per sandbox, execd as its process 1, no network, no `docker exec`."""

import json
import os
import platform
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import docker
import requests.exceptions
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from pydantic import BaseModel, ConfigDict, Field

from core.errors import (
    BadImageError,
    CreateTimeoutError,
    DaemonError,
    ExecdUnreachableError,
    ImageNotFoundError,
    RuntimeUnavailableError,
)
from runtimes.base import EXECD_PORT, Runtime, SandboxHandle, SandboxSpec, SandboxStats
from runtimes.bundle import BUNDLE_MOUNT, Bundle, ensure_bundle
from runtimes.cgroups import cgroup_of
from runtimes.container_spec import SANDBOX_LABEL, container_settings, labels_of
from runtimes.deadline import Deadline
from runtimes.execd_client import HttpExecutionClient
from runtimes.netns import connect_in_namespace
from runtimes.processes import ProcessRef

__all__ = ["DockerConfig", "DockerRuntime"]
