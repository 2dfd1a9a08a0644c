"""The dashboard and the alerts: every expression parses, and every metric and label in them is one that there is."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from gateway.gauges import Gauges
from gateway.metrics import Metrics
from gateway.model_status import ModelState
from tests.gateway.test_metrics import END

DEPLOY = Path(__file__).parents[2] / "deploy"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
SCRAPES_OWN = frozenset({"up"})
LABELS = frozenset({"method", "model", "code", "reason", "state", "what", "le", "job", "instance"})
VARIABLES = {"$__rate_interval": "5m", "$model": ".+"}


def known_metrics() -> frozenset[str]:
    metrics = Metrics()
    metrics.registry.register(Gauges())
    names = (
        f"{family.name}{suffix}" for family in metrics.registry.collect() for suffix in SUFFIXES.get(family.type, ("",))
    )
    return frozenset(names) | SCRAPES_OWN


def dashboard() -> dict[str, Any]:
    return json.loads((DEPLOY / "grafana-dashboard.json").read_text())


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']} {target['refId']}", target["expr"]
    for rule in rules():
        yield f"alert {rule['alert']}", rule["expr"]


ALL = list(expressions())
KNOWN = known_metrics()


def plain(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


@pytest.mark.parametrize("expression", [one for _, one in ALL], ids=[name for name, _ in ALL])
def test_an_expression_parses_and_names_what_there_is(expression: str) -> None:
    text = str(promql_parser.parse(plain(expression)))
    assert "$" not in text
    names = set(re.findall(r"\b(?:pomona_[a-z0-9_]+|up)\b", re.sub(r'"[^"]*"', "", text)))
    assert names
    assert names <= KNOWN
    labels = set(re.findall(r"\b([a-z_]+)\s*(?:=~|!=|=)\s*\"", text))
    grouped = {name.strip() for group in re.findall(r"by \(([^)]*)\)", text) for name in group.split(",")}
    assert labels | grouped <= LABELS


def test_a_name_that_is_none_is_caught() -> None:
    assert "pomona_request_total" not in KNOWN
    with pytest.raises(ValueError, match="unclosed"):
        promql_parser.parse("sum by (model (rate(pomona_requests_total[5m]))")


def test_states_and_words_in_matchers_are_ones_that_there_are() -> None:
    states = {state.name.lower() for state in ModelState}
    for _, expression in ALL:
        assert set(re.findall(r'state="([^"]*)"', expression)) <= states


def test_labels_of_the_metrics_are_those_that_are_asked_for() -> None:
    metrics = Metrics()
    metrics.ended(END)
    found = {label for family in metrics.registry.collect() for one in family.samples for label in one.labels}
    assert {"method", "model", "code", "reason", "le"} == found


def test_panels_do_not_lie_over_each_other() -> None:
    cells: set[tuple[int, int]] = set()
    ids: set[int] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        taken = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in taken) < 24
        cells |= taken
        ids.add(panel["id"])
    assert len(ids) == len(dashboard()["panels"])


def test_alerts_say_what_they_mean_and_how_bad_it_is() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    page = (DEPLOY.parent / "docs" / "observability.md").read_text()
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"]
        assert f"`{rule['alert']}`" in page


def test_prometheus_reads_the_alerts_and_the_page() -> None:
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert settings["rule_files"] == ["alerts.yml"]
    (job,) = settings["scrape_configs"]
    assert (job["job_name"], job["static_configs"][0]["targets"]) == ("pomona", ["127.0.0.1:9464"])
