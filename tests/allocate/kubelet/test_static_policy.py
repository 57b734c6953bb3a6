from __future__ import annotations

from itertools import combinations

import msgspec
import pytest

from agent.allocate.kubelet.static_policy import (
    PolicyStartError,
    StartProblem,
    StaticOptions,
    check_options,
)
from agent.model.cpu.layout import of
from agent.model.cpu.policies import NumaPolicy
from conformance.machines import cpus

LAYOUT = of(cpus([2, 1, 2, 2], "adjacent", 2))

FULL = "full-pcpus-only"
NUMA = "distribute-cpus-across-numa"
CORES = "distribute-cpus-across-cores"
CACHE = "prefer-align-cpus-by-uncorecache"
SOCKET = "align-by-socket"
STRICT = "strict-cpu-reservation"
EXCLUDING = [{NUMA, CORES}, {NUMA, CACHE}, {CORES, CACHE}, {FULL, CORES}]


def options(*names: str) -> StaticOptions:
    return msgspec.convert(dict.fromkeys(names, True), StaticOptions)


@pytest.mark.parametrize("names", list(combinations([FULL, NUMA, CORES, CACHE, SOCKET, STRICT], 2)))
def test_which_options_exclude_each_other(names: tuple[str, str]) -> None:
    if set(names) not in EXCLUDING:
        check_options(options(*names), LAYOUT, NumaPolicy.RESTRICTED)
        return
    with pytest.raises(PolicyStartError, match=f"{names[0]}|{names[1]}") as error:
        check_options(options(*names), LAYOUT, NumaPolicy.RESTRICTED)
    assert error.value.problem is StartProblem.OPTIONS_EXCLUDE_EACH_OTHER
    assert all(name in error.value.subject for name in names)


def test_align_by_socket_needs_a_policy_of_several_nodes() -> None:
    with pytest.raises(PolicyStartError) as error:
        check_options(options(SOCKET), LAYOUT, NumaPolicy.SINGLE_NUMA_NODE)
    assert error.value.problem is StartProblem.SINGLE_NUMA_NODE


def test_align_by_socket_needs_sockets_no_smaller_than_nodes() -> None:
    spanning = of(cpus([2, 0.5, 2, 2], "adjacent", 2))
    with pytest.raises(PolicyStartError) as error:
        check_options(options(SOCKET), spanning, NumaPolicy.NONE)
    assert error.value.problem is StartProblem.MORE_SOCKETS_THAN_NODES


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(msgspec.ValidationError, match="scale-delay"):
        options("scale-delay")
