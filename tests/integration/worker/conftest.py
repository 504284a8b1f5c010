from tests.support.runtime_fixtures import runtime_folder  # noqa: F401 -- fixtures are found by name
