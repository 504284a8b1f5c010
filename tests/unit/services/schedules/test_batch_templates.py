import json
from dataclasses import MISSING, fields

from services.batch_templates import from_template, to_template
from services.batch_webhooks import BatchWebhook
from services.batches import Caps, NewBatch, NewJobs
from services.jobspec import Input, TrialPlan
from services.webhook_events import WebhookEvent
from tests.support.queue import make_spec


def test_batch_comes_back_as_it_was():
    batch = NewBatch(
        name="nightly",
        labels={"a": "b"},
        priority=-3,
        implicit=True,
        jobs=NewJobs.of(make_spec(inputs=(Input("/a", blob="sha256:" + "0" * 64),), trials=TrialPlan(4, 7))),
        caps=Caps(5, {"repo": 2}),
        is_open=True,
        defaults={"image": "a"},
        stop_when={"failed": 2},
        webhook=BatchWebhook("https://a.example", "s", (WebhookEvent.TRIAL_FINISHED,)),
    )
    assert from_template(json.loads(json.dumps(to_template(batch)))) == batch


def test_no_field_of_a_batch_is_forgotten():
    batch = NewBatch(name=None, labels={}, priority=0, implicit=False, jobs=NewJobs.of(make_spec()))
    assert set(to_template(batch)) == {field.name for field in fields(NewBatch)} | {"fields"}


def test_template_of_an_older_release_gets_the_defaults_of_newer_fields():
    required = {f.name for f in fields(NewBatch) if f.default is MISSING and f.default_factory is MISSING}
    batch = NewBatch(name="old", labels={}, priority=0, implicit=False, jobs=NewJobs.of(make_spec()))
    old = {name: value for name, value in to_template(batch).items() if name in required}
    assert from_template(old) == batch
