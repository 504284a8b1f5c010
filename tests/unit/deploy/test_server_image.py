import re
import tomllib

from api.routes import health
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


def test_the_description_of_live_sandboxes_goes_where_the_api_looks_for_it():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {"specs/lifecycle.yaml": "api/lifecycle.yaml"}
    image = (REPOSITORY / "images/server/Dockerfile").read_text()
    assert "\nCOPY specs/lifecycle.yaml /opt/sandmill/src/api/lifecycle.yaml\n" in image
    assert "!specs/lifecycle.yaml" in (REPOSITORY / ".dockerignore").read_text().split()
    assert health._LIFECYCLE_PATHS == (
        REPOSITORY / "api/lifecycle.yaml",
        REPOSITORY / "specs/lifecycle.yaml",
    )
