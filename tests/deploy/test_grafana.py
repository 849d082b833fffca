"""The Grafana dashboard asks only for what routers and workers export, and the files around it fit together."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.metrics_page import SUFFIXES, families, markdown, router_page, shown_name, worker_page

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "baton.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]

#: Labels that Prometheus adds.
ADDED_LABELS = {"job", "instance"}


def exported() -> dict[str, set[str]]:
    """Every sample there is, and its labels as far as there is one to look at."""
    found: dict[str, set[str]] = {}
    for page in (router_page(), worker_page()):
        for family in text_string_to_metric_families(page.decode()):
            found |= {family.name + suffix: set() for suffix in SUFFIXES[family.type]}
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    # Observed only when something happens; a histogram of prometheus_client's own with labels shows nothing before.
    found["baton_worker_read_seconds_bucket"] |= {"outcome", "le"}
    return found


@pytest.mark.parametrize("query", QUERIES)
def test_each_query_asks_for_what_there_is(query: str) -> None:
    known = exported()
    names = re.findall(r"\bbaton_\w+", query)
    assert names
    assert set(names) <= known.keys()
    asked = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
    assert asked <= set.union(*(known[name] for name in names)) | ADDED_LABELS


def test_the_dashboard_shows_what_an_operator_looks_for() -> None:
    shown = set(re.findall(r"\bbaton_\w+", " ".join(QUERIES)))
    assert shown >= {
        "baton_router_ttft_seconds_bucket",
        "baton_router_phase_seconds_bucket",
        "baton_router_itl_seconds_bucket",
        "baton_router_requests",
        "baton_router_requests_ended_total",
        "baton_router_leases_total",
        "baton_worker_lease_outcomes_total",
        "baton_worker_kv_blocks",
        "baton_worker_reads_total",
        "baton_worker_read_seconds_bucket",
        "baton_worker_reads_stuck",
        "baton_worker_handshakes",
        "baton_worker_step_seconds_bucket",
    }


def test_panels_do_not_lie_upon_each_other() -> None:
    taken = Counter(
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    )
    assert set(taken.values()) == {1}
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_dashboard_asks_whichever_prometheus_and_workers_are_chosen() -> None:
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    used = {panel["datasource"]["uid"] for panel in DASHBOARD["panels"] if "targets" in panel}
    assert used == {variables["job"]["datasource"]["uid"]} == {"${datasource}"}
    of_workers = [query for query in QUERIES if "baton_worker_" in query]
    assert of_workers and all(query.count("baton_worker_") == query.count('{job=~"$job"}') for query in of_workers)


def test_what_is_a_mean_or_a_share_is_that_of_late() -> None:
    """A quotient of counters without ``rate`` is that since the process began."""
    quotients = [query for query in QUERIES if " / " in query]
    assert quotients and all(
        part.startswith(("sum(rate(", "sum by (job) (rate(")) for q in quotients for part in q.split(" / ")
    )


def test_the_page_of_metrics_is_that_of_the_code() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == markdown()


def test_names_say_what_kind_of_metric_it_is() -> None:
    for page in (router_page(), worker_page()):
        for family in families(page):
            assert family.documentation
            if family.type != "counter":
                assert not family.name.endswith(("_total", "_count", "_sum", "_bucket")), shown_name(family)


def test_monitoring_is_a_profile_and_its_files_are_where_it_looks() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    monitoring = {name: service for name, service in services.items() if service.get("profiles") == ["monitoring"]}
    assert set(monitoring) == {"prometheus", "grafana"}
    for service in monitoring.values():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"])
        mounts = [volume.split(":") for volume in service["volumes"] if volume.startswith("./")]
        assert mounts
        assert all((ROOT / source).exists() and mode == "ro" for source, _, mode in mounts)
    scrapes = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    places = {name: dns["port"] for scrape in scrapes for dns in scrape["dns_sd_configs"] for name in dns["names"]}
    assert places == {"router": 8000, "prefill": 8100, "decode": 8100}
    assert places.keys() <= services.keys()
