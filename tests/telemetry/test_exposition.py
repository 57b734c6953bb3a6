"""The text format, compared with the official client."""

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client import Histogram as ClientHistogram
from prometheus_client.parser import text_string_to_metric_families

from agent.telemetry.exposition import (
    Histogram,
    Histograms,
    Metric,
    Numbers,
    Series,
    process_metrics,
    render,
    single,
)

BOUNDS = (0.001, 0.25, 2.0)


def test_the_parser_of_the_official_client_reads_every_value() -> None:
    reasons = {
        ("plain", "x"): 1.0,
        ('quote " and \\ and \n', "x"): 2.0,
        ("", "y"): 3.0,
    }
    text = render(
        [
            single(Series("a_total", "counter", "Things."), 12345678901),
            single(Series("b", "gauge", "A fraction."), 0.25),
            Metric(Series("c_total", "counter", "By reason.", ("reason", "of")), reasons),
        ]
    )
    families = {each.name: each for each in text_string_to_metric_families(text)}
    assert {(each.name, each.type) for each in families.values()} == {
        ("a", "counter"),
        ("b", "gauge"),
        ("c", "counter"),
    }
    assert families["a"].samples[0].value == 12345678901
    assert families["b"].samples[0].value == 0.25
    assert families["b"].documentation == "A fraction."
    found = {
        (each.labels["reason"], each.labels["of"]): each.value for each in families["c"].samples
    }
    assert found == reasons


def test_a_histogram_is_rendered_as_by_the_official_client() -> None:
    registry = CollectorRegistry()
    client = ClientHistogram("h_seconds", "Time.", ["method"], registry=registry, buckets=BOUNDS)
    ours = {("/a/B",): Histogram(BOUNDS), ("/a/C",): Histogram(BOUNDS)}
    for (method,), series in ours.items():
        for value in (0.0, 0.001, 0.0011, 0.25, 1.999, 2.0, 2.1, 1e9)[
            : 8 if method == "/a/B" else 3
        ]:
            series.observe(value)
            client.labels(method).observe(value)

    def samples(text: str) -> set[tuple[str, str, str, float]]:
        return {
            (each.name, each.labels["method"], str(float(each.labels.get("le", "0"))), each.value)
            for family in text_string_to_metric_families(text)
            for each in family.samples
            if not each.name.endswith("_created")
        }

    text = render([Histograms(Series("h_seconds", "histogram", "Time.", ("method",)), ours)])
    assert samples(text) == samples(generate_latest(registry).decode())


def test_numbers_without_labels_begin_with_zero_and_others_with_their_first_value() -> None:
    plain = Numbers(Series("a_total", "counter", "Things."))
    labelled = Numbers(Series("b_total", "counter", "Things.", ("reason",)))
    assert (plain.metric.values, labelled.metric.values) == ({(): 0}, {})
    for _ in range(2):
        plain.inc()
        labelled.inc("x")
    labelled.set(5, "y")
    assert (plain.metric.values, labelled.metric.values) == ({(): 2}, {("x",): 2, ("y",): 5})
    labelled.replace({("z",): 1})
    assert labelled.metric.values == {("z",): 1}


def test_the_process_has_the_metrics_of_the_official_client() -> None:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)

    def numbers(text: str) -> dict[str, float]:
        families = text_string_to_metric_families(text)
        return {sample.name: sample.value for family in families for sample in family.samples}

    official, ours = numbers(generate_latest(registry).decode()), numbers(render(process_metrics()))
    assert ours.keys() == official.keys()
    start = "process_start_time_seconds"
    assert abs(ours[start] - official[start]) < 5
    for name in ("process_resident_memory_bytes", "process_virtual_memory_bytes"):
        assert official[name] / 2 < ours[name] < official[name] * 2
    assert ours["process_max_fds"] == official["process_max_fds"]
