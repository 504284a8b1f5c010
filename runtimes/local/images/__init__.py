"""Images of the `local` runtime: unpacked once, content-addressed, shared by all sandboxes that start from them."""

from runtimes.local.images.config import ImageConfig
from runtimes.local.images.limits import ImageLimits
from runtimes.local.images.lookup import read_file
from runtimes.local.images.names import ImageName
from runtimes.local.images.progress import PullProgress
from runtimes.local.images.records import StoredImage
from runtimes.local.images.stacking import find_in_layers
from runtimes.local.images.store import ImageStore
from runtimes.local.images.users import resolve_user

__all__ = [
    "ImageConfig",
    "ImageLimits",
    "ImageName",
    "ImageStore",
    "PullProgress",
    "StoredImage",
    "find_in_layers",
    "read_file",
    "resolve_user",
]
