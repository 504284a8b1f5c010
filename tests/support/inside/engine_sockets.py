"""Print every way to a container engine or a cluster: sockets, tokens, ports, variables."""

import json
import os
import socket
import stat
from contextlib import suppress

SKIPPED = ("/proc", "/sys", "/usr", "/lib", "/.sbx")
PATHS = (
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
    "/var/run/secrets/kubernetes.io/serviceaccount/token",
    "/root/.docker",
    "/root/.kube",
)

found = []
for folder, folders, names in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in SKIPPED]
    for path in [os.path.join(folder, name) for name in names]:
        with suppress(OSError):
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                found.append(f"socket {path}")
found += [path for path in PATHS if os.path.exists(path)]
for port in (2375, 2376, 6443, 10250, 10255):
    with socket.socket() as probe:
        probe.settimeout(0.5)
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            found.append(f"port {port}")
found += [f"variable {name}" for name in os.environ if name.startswith(("KUBERNETES_", "DOCKER_", "AWS_"))]
print(json.dumps(found))
