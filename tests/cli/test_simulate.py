"""The command `topolet simulate`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Topolet
from tests.cli.saved_objects import bound, kind, saved
from tests.fixtures.fleet import owner

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"n{number},64000,262144,{2 + 6 * (number % 2)},T4\n" for number in range(6)
)
PODS = "cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "8000,8192,1,1000\n4000,4096,1,500\n" * 5
SOURCES = "give either --nodes and --pods, or --from-cluster, or --objects"


@pytest.fixture
def trace(tmp_path: Path) -> list[str]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return ["simulate", "--nodes", f"{tmp_path}/nodes.csv", "--pods", f"{tmp_path}/pods.csv"]


def test_json_is_alone_on_standard_output(trace: list[str], topolet: Topolet) -> None:
    captured = topolet(*trace, "--seeds", "2", "--output", "json")
    (name, found), *others = captured.json["policies"].items()
    assert (name, others) == ("Residual", [])
    assert list(found) == ["alloc_pct_at_100", "alloc_pct_at_130", "frag_pct_at_100"]
    assert all(set(each) == {"mean", "stdev"} for each in found.values())
    assert captured.err.splitlines() == [
        "Residual, seed 42 (1 of 2)",
        "Residual, seed 43 (2 of 2)",
    ]


def test_below_a_load_of_130_percent_its_figure_is_null(trace: list[str], topolet: Topolet) -> None:
    found = topolet(*trace, "--load", "1.1", "-o", "json", "--policy", "FGD").json["policies"][
        "FGD"
    ]
    assert found["alloc_pct_at_130"] is None
    assert found["alloc_pct_at_100"]["mean"] > 50


def test_a_table_of_several_policies(trace: list[str], topolet: Topolet) -> None:
    head, *rows = topolet(
        *trace, "--policy", "BestFit", "--policy", "FGD", "--policy", "FGD"
    ).out.splitlines()
    assert head.split("  ")[0] == "policy"
    assert [row.split()[0] for row in rows] == ["BestFit", "FGD"]


def test_departures(trace: list[str], topolet: Topolet) -> None:
    found = topolet(*trace, "--departures", "--load", "0.8", "-o", "json").json["policies"][
        "Residual"
    ]
    assert list(found) == ["alloc_pct_mean", "queued_pods_mean", "longest_wait_lifetimes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "/nowhere"], "/nowhere"),
        (["--load", "0"], "argument --load: '0' is not a number above 0 and at most 10"),
        (["--load", "x"], "argument --load: 'x' is not a number above 0 and at most 10"),
        (["--load", "nan"], "argument --load: 'nan' is not a number above 0 and at most 10"),
        (["--seeds", "0"], "argument --seeds: '0' is not a number from 1 on"),
        (["--seeds", "x"], "argument --seeds: 'x' is not a number from 1 on"),
        (["--seeds", "1001"], "argument --seeds: '1001' is more than 1000"),
        (["--policy", "X"], "argument --policy: invalid choice: 'X'"),
        (["--from-cluster"], SOURCES),
    ],
)
def test_wrong_arguments_are_named(
    trace: list[str], arguments: list[str], message: str, topolet: Topolet
) -> None:
    assert message in topolet(*trace, *arguments, code=2).err


def test_a_wrong_cell_is_named(trace: list[str], tmp_path: Path, topolet: Topolet) -> None:
    (tmp_path / "pods.csv").write_text(PODS + "1,1,one,1000\n")
    assert "pods.csv: line 12: num_gpu: 'one' is not a whole number" in topolet(*trace, code=2).err


@pytest.mark.parametrize(
    "arguments", [[], ["--nodes", "n.csv"], ["--from-cluster", "--objects", "folder"]]
)
def test_one_source_is_required(arguments: list[str], topolet: Topolet) -> None:
    assert SOURCES in topolet("simulate", *arguments, code=2).err


def test_the_fragmentation_of_saved_objects(tmp_path: Path, topolet: Topolet) -> None:
    objects = saved(tmp_path, bound("p", "a", "0-7"))
    sample = tmp_path.parent / "sample.yaml"
    sample.write_text(yaml.safe_dump(kind("Pod", owner(8, 8).pod("sample"))))
    captured = topolet("simulate", objects, "--pod", str(sample), "-o", "json")
    found = captured.json
    assert found["schema_version"] == 1
    assert (found["cpus_on_broken_cores"], found["rebind_nodes"]) == (8, 1)
    assert found["fitting"] == sum(each["fitting"] for each in found["nodes"])
    assert "would save 4 broken cores" in topolet("simulate", objects).out


def test_a_file_with_several_pods_is_not_a_sample(tmp_path: Path, topolet: Topolet) -> None:
    objects = saved(tmp_path)
    printed = topolet("simulate", objects, "--pod", f"{tmp_path}/pods.yaml", code=2)
    assert "pods.yaml: has 3 objects, not one" in printed.err
