import pytest

from core.errors import NotSupportedError
from core.sealing import SealBrokenError, SecretBox

BOX = SecretBox("one key")


def test_sealed_secret_comes_back_and_never_looks_the_same():
    sealed = [BOX.seal(b"secret", purpose="p") for _ in range(2)]
    assert sealed[0] != sealed[1]
    assert not any(b"secret" in value for value in sealed)
    assert {BOX.unseal(value, purpose="p") for value in sealed} == {b"secret"}


@pytest.mark.parametrize(
    ("box", "purpose", "change"),
    [(SecretBox("other key"), "p", 0), (BOX, "q", 0), (BOX, "p", 1)],
    ids=["key", "purpose", "bytes"],
)
def test_nothing_else_opens_it(box, purpose, change):
    sealed = bytearray(BOX.seal(b"secret", purpose="p"))
    sealed[-1] ^= change
    with pytest.raises(SealBrokenError):
        box.unseal(bytes(sealed), purpose=purpose)


def test_without_a_key_the_setting_is_named():
    with pytest.raises(NotSupportedError, match="SANDMILL_SECRET_KEY"):
        SecretBox(None).seal(b"secret", purpose="p")
