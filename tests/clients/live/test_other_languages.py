"""The published clients in other languages: make a sandbox, run, files, kill. mark.docker

The Go client has a file of its own, test_go.py.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.live import LiveServer

NPM_VERSION = "0.1.11"
MAVEN_VERSION = "1.0.0"

SCRIPT = """\
import { ConnectionConfig, Sandbox } from "@alibaba-group/opensandbox";
const [domain, apiKey, image] = process.argv.slice(2);
const connectionConfig = new ConnectionConfig({ domain, apiKey });
const sandbox = await Sandbox.create({
  connectionConfig, image, timeoutSeconds: 600, entrypoint: ["tail", "-f", "/dev/null"], env: { GREETING: "hello" },
});
const said = await sandbox.commands.run("echo $GREETING; exit 0");
await sandbox.files.writeFiles([{ path: "/tmp/a.txt", data: "written", mode: 644 }]);
const read = await sandbox.files.readFile("/tmp/a.txt");
const info = await sandbox.getInfo();
await sandbox.kill();
await sandbox.close();
console.log(JSON.stringify({
  said: said.logs.stdout.map((message) => message.text).join("").trim(), read, state: info.status.state,
}));
"""

PROGRAM = """\
import com.alibaba.opensandbox.sandbox.Sandbox;
import com.alibaba.opensandbox.sandbox.config.ConnectionConfig;
import com.alibaba.opensandbox.sandbox.domain.models.execd.executions.RunCommandRequest;
import com.alibaba.opensandbox.sandbox.domain.models.execd.filesystem.WriteEntry;
import java.time.Duration;
import java.util.List;

public class Smoke {
    public static void main(String[] args) throws Exception {
        ConnectionConfig config = ConnectionConfig.builder().domain(args[0]).apiKey(args[1]).build();
        Sandbox sandbox = Sandbox.builder().connectionConfig(config).image(args[2])
            .entrypoint(List.of("tail", "-f", "/dev/null")).timeout(Duration.ofMinutes(10)).build();
        var said = sandbox.commands().run(RunCommandRequest.builder().command("echo hello").build());
        sandbox.files().write(List.of(WriteEntry.builder().path("/tmp/a.txt").data("written").mode(644).build()));
        String read = sandbox.files().readFile("/tmp/a.txt", "UTF-8", null);
        String state = sandbox.getInfo().getStatus().getState();
        sandbox.kill();
        System.out.println(said.getLogs().getStdout().get(0).getText().trim() + " " + read + " " + state);
        System.exit(0);
    }
}
"""

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>smoke</groupId><artifactId>smoke</artifactId><version>1</version>
<dependencies><dependency><groupId>com.alibaba.opensandbox</groupId><artifactId>sandbox</artifactId>
<version>{version}</version></dependency></dependencies></project>
"""


def run(*argv: object, cwd: Path, seconds: int = 110) -> str:
    done = subprocess.run(
        [str(word) for word in argv],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=seconds,
        env={**os.environ, "NO_UPDATE_NOTIFIER": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def need(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")


@pytest.fixture(scope="session")
def npm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("node", "npm")
    folder = tmp_path_factory.mktemp("npm")
    run("npm", "init", "-y", cwd=folder)
    run("npm", "install", "--no-audit", "--no-fund", f"@alibaba-group/opensandbox@{NPM_VERSION}", cwd=folder)
    return folder


@pytest.fixture(scope="session")
def maven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("mvn", "java", "javac")
    folder = tmp_path_factory.mktemp("maven")
    (folder / "pom.xml").write_text(POM.format(version=MAVEN_VERSION))
    run("mvn", "-q", "dependency:copy-dependencies", cwd=folder, seconds=300)
    (folder / "Smoke.java").write_text(PROGRAM)
    run("javac", "-cp", "target/dependency/*", "Smoke.java", cwd=folder)
    return folder


def test_javascript(server: LiveServer, npm: Path) -> None:
    (npm / "smoke.mjs").write_text(SCRIPT)
    said = run("node", "smoke.mjs", server.domain, server.key, server.image, cwd=npm)
    assert said.strip() == '{"said":"hello","read":"written","state":"Running"}'


@pytest.mark.timeout(400)
def test_java(server: LiveServer, maven: Path) -> None:
    said = run(
        "java", "-cp", "target/dependency/*:.", "Smoke", server.domain, server.key, server.image, cwd=maven
    )
    assert said.strip().splitlines()[-1] == "hello written Running"
