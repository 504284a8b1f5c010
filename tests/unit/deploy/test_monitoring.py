"""Alerts and dashboard: right PromQL, over metrics and label values that the programs really have."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.metrics_core import Metric

from api.metrics import ApiMetrics
from core.metrics import REGISTRY
from models.states import Outcome
from repositories.statistics import QueueStatistics, StatisticsRepository
from tests.support.launching import REPOSITORY

RULES = yaml.safe_load((REPOSITORY / "deploy/prometheus/rules.yml").read_text())
DASHBOARD = json.loads((REPOSITORY / "deploy/grafana/sandmill.json").read_text())


def alerts() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [rule["expr"] for rule in alerts()] + panels


def selectors(node: Any) -> Iterator[Any]:
    """Every vector selector of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        child = getattr(node, name, None)
        if child is not None:
            yield from selectors(child)
    for child in getattr(node, "args", None) or []:
        yield from selectors(child)


class NoEngine:
    """Stands where the database is; what would be asked of it is answered by the fixture below."""

    @contextmanager
    def begin(self) -> Iterator[None]:
        yield None


@pytest.fixture
def told(monkeypatch) -> set[str]:
    """Names of all series that API, scheduler and worker tell."""
    numbers = dict.fromkeys(QueueStatistics.__dataclass_fields__, 0)
    by_state = {name: {} for name in ("open_by_state", "attempts_by_state", "pool_members_by_state")}
    queue = QueueStatistics(**{**numbers, **by_state})
    monkeypatch.setattr(StatisticsRepository, "read_queue", lambda _self: queue)
    monkeypatch.setattr(StatisticsRepository, "read_outcomes", lambda _self: dict.fromkeys(Outcome, 0))
    families: list[Metric] = [*REGISTRY.collect(), *ApiMetrics(NoEngine()).registry.collect()]
    return {name for family in families for name in names_of(family)}


def names_of(family: Metric) -> list[str]:
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
    return [family.name + suffix for suffix in suffixes.get(family.type, [""])]


@pytest.mark.parametrize("expression", expressions())
def test_expression_is_promql_over_metrics_that_exist(expression, told):
    found = list(selectors(promql_parser.parse(expression)))
    assert found
    for selector in found:
        assert selector.name in told


def test_every_alert_says_what_it_means_and_what_to_do():
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names)) >= 15
    for rule in alerts():
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["action"].endswith(".")


def test_every_metric_is_explained(told):
    page = (REPOSITORY / "docs/observability.md").read_text()
    bases = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in told}
    assert [name for name in sorted(bases) if f"`{name}`" not in page] == []


def test_panels_do_not_lie_on_each_other():
    places = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
