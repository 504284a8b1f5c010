"""The Celery application as Flower and the worker see it: `celery -A workers.app`. Reads the settings when imported."""

from core.broker import create_celery
from core.secret_rules import program_settings

__all__ = ["app"]

app = create_celery(program_settings("celery").redis_url.get_secret_value())
