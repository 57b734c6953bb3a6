from prometheus_client.parser import text_string_to_metric_families

from agent.telemetry.plain import Metric, render


def test_a_real_parser_reads_every_value_back() -> None:
    reasons = {"plain": 1.0, 'quote " and \\ and \n': 2.0, "": 3.0}
    text = render(
        [
            Metric("a_total", "counter", "Things.", {"": 12345678901}),
            Metric("b", "gauge", "A fraction.", {"": 0.25}),
            Metric("c_total", "counter", "By reason.", reasons, label="reason"),
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
    assert {each.labels["reason"]: each.value for each in families["c"].samples} == reasons
