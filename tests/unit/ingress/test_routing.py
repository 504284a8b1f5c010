from uuid import UUID

import pytest

from ingress.errors import RouteError
from ingress.routing import Route, find_route
from tests.support.spellings import OTHER_SPELLINGS
from traffic.heads import RequestHead

ID = UUID("0d3b4f0a-9c55-4c1c-8b5e-5f1f6a1b2c3d")


def head(target: str = "/", **headers: str) -> RequestHead:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return RequestHead(b"GET", target.encode(), 11, pairs)


@pytest.mark.parametrize(
    ("request_head", "route"),
    [
        (head(f"/{ID}/80"), Route(ID, 80, b"/", f"/{ID}/80".encode())),
        (head(f"/{ID}/80?x"), Route(ID, 80, b"/?x", f"/{ID}/80".encode())),
        (
            head(f"/{ID}/80/~{'t' * 32}/a?b"),
            Route(ID, 80, b"/a?b", f"/{ID}/80".encode(), b"t" * 32),
        ),
        (head(f"/{ID}/80/~{'t' * 32}"), Route(ID, 80, b"/", f"/{ID}/80".encode(), b"t" * 32)),
        (head(f"/{ID}/80/~short/a"), Route(ID, 80, b"/~short/a", f"/{ID}/80".encode())),
        (head(f"/{ID}/65535//a?/b"), Route(ID, 65535, b"//a?/b", f"/{ID}/65535".encode())),
        (head(f"/{ID}/81/x", OpenSandbox_Ingress_To=f"{ID}-80"), Route(ID, 80, f"/{ID}/81/x".encode())),
        (head("/x", OPEN_SANDBOX_INGRESS=f"{ID}-80", Host=f"{ID}-81.h"), Route(ID, 80, b"/x")),
        (
            head("/x", OPEN_SANDBOX_INGRESS=f"{ID}-81", OpenSandbox_Ingress_To=f"{ID}-80"),
            Route(ID, 80, b"/x"),
        ),
        (head(f"/{ID}/81/", Host=f"{ID}-80.example.org:28888"), Route(ID, 80, f"/{ID}/81/".encode())),
        (head("/x", Host=f"{str(ID).upper()}-80.EXAMPLE.ORG"), Route(ID, 80, b"/x")),
    ],
)
def test_header_host_and_path_lead_in_this_order(request_head, route):
    assert find_route(request_head) == route


@pytest.mark.parametrize("host", ["h", f"{ID}.h", f"x{ID}-80.h", f"{ID}-080.h", ""])
def test_a_host_that_names_no_sandbox_leaves_it_to_the_path(host):
    assert find_route(head(f"/{ID}/81/", Host=host)).port == 81
    with pytest.raises(RouteError) as caught:
        find_route(head("/", Host=host))
    assert caught.value.status == 404


@pytest.mark.parametrize("spell", OTHER_SPELLINGS.values(), ids=OTHER_SPELLINGS)
def test_an_id_in_another_spelling_names_no_sandbox(spell):
    for request_head in (
        head(f"/{spell(ID)}/80/"),
        head(f"/{ID}/80/", OpenSandbox_Ingress_To=f"{spell(ID)}-80"),
        head(f"/{ID}/80/", OPEN_SANDBOX_INGRESS=f"{spell(ID)}-80"),
    ):
        with pytest.raises(RouteError) as caught:
            find_route(request_head)
        assert caught.value.status == 404


@pytest.mark.parametrize("value", ["", "x", "x-80", f"{ID}", f"{ID}-", f"{ID}-0", f"{ID}-x"])
def test_a_header_that_is_no_id_and_port_is_a_mistake(value):
    with pytest.raises(RouteError) as caught:
        find_route(head(f"/{ID}/80/", OpenSandbox_Ingress_To=value))
    assert caught.value.status == 400
