"""The daemon inside each sandbox: flags, build, run."""

import sys

# Without it asyncio starts faster and smaller; execd speaks no TLS.
sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]  # None means "cannot be imported"

from execd.daemon import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
