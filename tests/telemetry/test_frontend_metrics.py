import contextlib
import http.client
import threading

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as ClientHistogram
from prometheus_client.parser import text_string_to_metric_families

from agent.host.loop import Loop
from agent.http.peers import NodeAddresses
from agent.telemetry.frontend_metrics import (
    Histogram,
    Histograms,
    Metric,
    render,
    serve_pages,
    single,
)
from agent.telemetry.series import Series
from tests.waiting import DEADLINE_SECONDS

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


def test_readiness_has_the_reason_and_liveness_does_not() -> None:
    loop = Loop()
    problem = "the runtime does not answer"
    pages = serve_pages(loop, ("127.0.0.1", 0), NodeAddresses(), lambda: "", lambda: problem)
    assert pages is not None
    thread = threading.Thread(target=loop.run)
    thread.start()

    def page(path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=DEADLINE_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read()

    try:
        assert page("/readyz") == (503, b"the runtime does not answer\n")
        assert page("/healthz") == (200, b"ok\n")
        problem = ""
        assert page("/readyz") == (200, b"ok\n")
    finally:
        loop.stop()
        thread.join(DEADLINE_SECONDS)
        pages.close()
        loop.close()
