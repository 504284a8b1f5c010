"""The Celery application as Flower and the worker see it: `celery -A workers.app`. Reads the settings when imported."""

from core.broker import create_celery
from core.config import Settings
from core.environment import settings_or_exit

__all__ = ["app"]

app = create_celery(settings_or_exit(Settings, program="celery").redis_url.get_secret_value())
