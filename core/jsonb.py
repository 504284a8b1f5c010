import json
import re
from typing import Any

__all__ = ["to_jsonb"]

_ESCAPE = re.compile(r"(\\\\)|\\u0000")


def to_jsonb(value: Any) -> str:
    """Give JSON text that Postgres takes as jsonb, whatever a sandbox put into the strings.

    jsonb refuses U+0000 and lone surrogates; both become U+FFFD or `?`, so that hostile text can never keep an attempt
    from being recorded.
    """
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
    # An escaped backslash is a token of its own: the text `\\u0000` may be a backslash and the letters u0000.
    return _ESCAPE.sub(lambda match: match[1] or "\ufffd", text)
