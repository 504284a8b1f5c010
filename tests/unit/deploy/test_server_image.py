import re
import tomllib

from tests.support.launching import REPOSITORY


def test_every_package_is_in_the_image():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = re.findall(
        r"^COPY (\w+) /opt/sandmill/src/(\w+)$",
        (REPOSITORY / "images/server/Dockerfile").read_text(),
        re.MULTILINE,
    )
    assert copied == [(name, name) for name in sorted(packages)]
    let_in = (REPOSITORY / ".dockerignore").read_text().split()
    assert [name for name in packages if f"!{name}" not in let_in and f"!{name}/" not in let_in] == []
