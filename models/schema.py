"""Imports every module with tables, so that `Base.metadata` is the whole schema."""

import models.dead_letters
import models.fan_out
import models.live_sandboxes
import models.operators
import models.pools
import models.retention
import models.schedules
import models.scheduling
import models.snapshots
import models.tables
import models.usage
import models.webhooks  # noqa: F401 -- imported for what it registers
from models.base import Base

__all__ = ["metadata"]

metadata = Base.metadata
