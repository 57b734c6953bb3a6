from __future__ import annotations

import pytest

from agent.model.pod.qos import QoS
from agent.model.settings.frontends import (
    CREATE,
    RUN,
    SANDBOX_SECONDS,
    Deadlines,
    FailurePolicyError,
    ProxySettings,
    parse_policies,
)


@pytest.mark.parametrize(
    ("rules", "hook", "qos", "fails"),
    [
        ("", "CreateContainer", QoS.LSE, False),
        ("*=fail", "CreateContainer", None, True),
        ("*=fail,*/BE=ignore", "CreateContainer", QoS.BE, False),
        ("*/BE=ignore,*=fail", "CreateContainer", QoS.BE, False),
        ("CreateContainer=fail,*/BE=ignore", "CreateContainer", QoS.BE, True),
        ("CreateContainer/BE=ignore,CreateContainer=fail", "CreateContainer", QoS.BE, False),
        ("CreateContainer/LSE=fail", "CreateContainer", None, False),
        ("CreateContainer/*=fail", "CreateContainer", None, True),
        (" CreateContainer/LSE = fail , ", "UpdateContainerResources", QoS.LSE, False),
        ("*=fail,*=ignore", "RunPodSandbox", QoS.LS, False),
    ],
)
def test_the_most_specific_rule_applies(
    rules: str, hook: str, qos: QoS | None, fails: bool
) -> None:
    assert parse_policies(rules).fails(hook, qos) is fails


@pytest.mark.parametrize("qos", list(QoS))
def test_by_default_only_creations_that_need_exclusive_cpus_fail(qos: QoS) -> None:
    default = parse_policies(ProxySettings().hook_failure_policy)
    assert default.fails("CreateContainer", qos) is (qos in (QoS.LSE, QoS.LSR))
    assert not default.fails("UpdateContainerResources", qos)
    assert not default.fails("CreateContainer", None)


@pytest.mark.parametrize(
    ("rules", "part"),
    [
        ("CreateContainer", "no '='"),
        ("Create=fail", "hook 'Create' is not"),
        ("*/LSX=fail", "class 'LSX' is not"),
        ("*/=fail", "class '' is not"),
        ("*=maybe", "neither ignore nor fail"),
    ],
)
def test_an_invalid_rule_is_quoted(rules: str, part: str) -> None:
    with pytest.raises(FailurePolicyError, match=part) as error:
        parse_policies(f"*=ignore,{rules}")
    assert repr(rules) in str(error.value)


def test_a_sandbox_is_held_for_a_short_time() -> None:
    assert [Deadlines(0.5).of(hook) for hook in (CREATE, RUN)] == [0.5, SANDBOX_SECONDS]
    assert Deadlines(0.01).of(RUN) == 0.01
