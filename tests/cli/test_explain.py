"""The command `topolet explain` on saved objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from agent.model import snapshot as snapshots
from agent.model.linux_resources import LinuxResources
from agent.model.pod.qos import QoS
from agent.model.settings.feature_modes import FeatureMode
from agent.model.snapshot import PodWanted, Wanted
from agent.usage import OFFERED_FILE, QUIET_FILE, STRATEGIES_FILE
from agent.view.features import ShownFeature
from agent.view.quiet import ShownQuiet
from tests.cli.conftest import Topolet
from tests.cli.kubectl import RUNNING, Kubectl
from tests.cli.kubectl import pod as agent_pod
from tests.cli.saved_objects import bound, of_daemon_set, saved
from tests.fixtures.fleet import gpu_pod, owner
from tests.hooks.snapshots import EMPTY, OWNED

Object = dict[str, Any]
NAME = "--scheduler-name=topolet"


def test_a_pod_from_the_saved_objects(tmp_path: Path, topolet: Topolet) -> None:
    objects = saved(tmp_path, owner(40, 8).pod("p"))
    output = topolet("explain", "p", objects, NAME).out
    assert output.startswith("Pod default/p: only node c has room, of 3.\n")
    assert "policies in force:" in output
    assert "a: no room" in output


def test_a_pod_that_gets_no_node(tmp_path: Path, topolet: Topolet) -> None:
    objects = saved(tmp_path, gpu_pod(16).pod("p"))
    answer = topolet("explain", "p", objects, NAME, "-o", "json", code=1).json
    assert answer["schemaVersion"] == 1
    (found,) = answer["explanations"]
    assert (found["pod"], found["winner"]) == ("default/p", "")
    causes = {each["node"]: each["causes"][0] for each in found["nodes"]}
    assert causes["c"]["code"] == "device-insufficient"
    assert (causes["c"]["requested"], causes["c"]["available"]) == (16, 8)
    assert causes["c"]["objects"][0]["kind"] == "Pod"


def test_what_if_for_a_workload_that_does_not_exist_yet(tmp_path: Path, topolet: Topolet) -> None:
    folder = tmp_path / "objects"
    folder.mkdir()
    objects = saved(folder)
    pod = owner(8, 8).pod("ignored")
    pod["spec"]["containers"][0]["resources"].pop("requests")
    template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
    workload = {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": template}}
    file = tmp_path / "web.yaml"
    file.write_text(yaml.safe_dump(workload))
    assert topolet("explain", str(file), "--what-if", objects, NAME, "-n", "shop").out.startswith(
        "Pod shop/web: node "
    )


def test_the_claims_of_a_pod_are_named_with_their_cpus(tmp_path: Path, topolet: Topolet) -> None:
    """Those of a pod that exists."""
    pod = bound("p", "a", "0-7")
    pod["spec"]["containers"][0].setdefault("resources", {})["claims"] = [{"name": "cpus"}]
    pod["spec"]["resourceClaims"] = [
        {"name": "cpus", "resourceClaimName": "eight"},
        {"name": "gone", "resourceClaimName": "gone"},
    ]
    pod["spec"]["containers"][0]["resources"]["claims"].append({"name": "gone"})
    objects = saved(tmp_path, pod)
    names = {"driver": "cpu.topolet.io", "pool": "a", "device": "numa-node-0"}
    claim = {
        "kind": "ResourceClaim",
        "metadata": {"name": "eight", "namespace": "default"},
        "status": {
            "allocation": {"devices": {"results": [{"request": "cpus", **names}]}},
            "devices": [{**names, "data": {"cpus": "8-15"}}],
        },
    }
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(claim))
    text = topolet("explain", "p", objects, NAME).out
    assert "  claim default/eight: device numa-node-0 of node a, CPUs 8-15, ready\n" in text
    assert "claim default/gone can't be read: it is not among the saved objects" in text
    assert "claim " not in topolet("explain", "p", objects, NAME, "--what-if").out


def test_what_if_frees_the_resources_of_the_pod(tmp_path: Path, topolet: Topolet) -> None:
    objects = saved(tmp_path, bound("p", "a", "0-7"))
    assert "It is on node a with CPUs 0-7" in topolet("explain", "p", objects, NAME).out
    assert "It is on node" not in topolet("explain", "p", objects, NAME, "--what-if").out


def test_what_if_a_node_is_drained(tmp_path: Path, topolet: Topolet) -> None:
    """The pods of the node are placed one after the other; those of DaemonSets stay."""
    daemon = of_daemon_set(bound("daemon", "c", "80-87"))
    pods = [bound(f"p{each}", "c", f"{each * 8}-{each * 8 + 7}") for each in range(9)]
    objects = saved(tmp_path, daemon, *pods)
    found = topolet("explain", "--what-if-drained=c", objects, NAME, "-o", "json", code=1).json[
        "explanations"
    ]
    winners = [each["winner"] for each in found]
    # Two nodes of 32 CPUs have room for four pods of 8 each.
    assert sorted(filter(None, winners)) == ["a"] * 4 + ["b"] * 4
    assert [each["pod"] for each in found if not each["winner"]] == ["default/p8"]
    assert all(each["drained"] == ["c"] for each in found)
    lines = topolet("explain", "--what-if-drained=c", objects, NAME, code=1).out.splitlines()
    assert lines[0].split() == ["POD", "NODE", "CPUS", "REASON"]
    assert lines[1].split() == ["default/p0", "a", "0-3,16-19"]
    assert lines[9].split(maxsplit=3)[:3] == ["default/p8", "-", "-"]
    assert "the NUMA nodes do not have enough" in lines[9]


def test_a_drained_node_without_pods(tmp_path: Path, topolet: Topolet) -> None:
    printed = topolet("explain", "--what-if-drained=c", saved(tmp_path), NAME)
    assert printed.out == "No pod would have to move.\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["p"], "pod default/p is not among the saved objects"),
        ([], "POD is missing"),
        (["p", "--what-if-drained=z"], "node z is not among the saved objects"),
        (["/nowhere/p.yaml"], "/nowhere/p.yaml"),
    ],
)
def test_arguments_without_an_explanation(
    arguments: list[str], reason: str, tmp_path: Path, topolet: Topolet
) -> None:
    assert reason in topolet("explain", *arguments, saved(tmp_path), NAME, code=2).err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("p", "batch-cpu"), "batch-cpu follows no pod: write `node batch-cpu`"),
        (("node", "batch-cpu"), "offers no batch-cpu: it does with --usage"),
        (("node", "mid-cpu"), "offers no mid-cpu"),
        (("node", "strategies"), "follows no strategies: it does with --usage and --node-slo"),
        (("node", "quiet"), "quiets no CPUs: it does with --quiet=act or observe"),
    ],
)
def test_a_resource_that_a_node_does_not_offer(
    words: tuple[str, ...], reason: str, tmp_path: Path, topolet: Topolet
) -> None:
    if words[1] == "mid-cpu":
        (tmp_path / OFFERED_FILE).write_text("{}")
    assert reason in topolet("explain", *words, f"--state-dir={tmp_path}", code=2).err


@pytest.mark.parametrize(
    ("file", "word"),
    [(OFFERED_FILE, "batch-cpu"), (STRATEGIES_FILE, "strategies"), (QUIET_FILE, "quiet")],
)
def test_a_file_of_the_agent_that_cannot_be_read_is_named_once(
    file: str, word: str, tmp_path: Path, topolet: Topolet
) -> None:
    path = tmp_path / file
    path.mkdir()
    printed = topolet("explain", "node", word, f"--state-dir={tmp_path}", code=2)
    assert printed.err.count(str(path)) == 1
    path.rmdir()
    path.write_text("{")
    printed = topolet("explain", "node", word, f"--state-dir={tmp_path}", code=2)
    assert printed.err.count(str(path)) == 1


def test_what_leaves_cpus_is_told_also_where_nobody_can_look_who_runs_there(
    tmp_path: Path, topolet: Topolet
) -> None:
    quiet = ShownQuiet((ShownFeature("interrupts", FeatureMode.ACT, 3),), ())
    (tmp_path / QUIET_FILE).write_bytes(msgspec.json.encode(quiet))
    words = ("explain", "node", "quiet", f"--state-dir={tmp_path}")
    assert "interrupts  act  has 3 files" in topolet(*words).out
    (tmp_path / snapshots.FILE).write_bytes(snapshots.encode(OWNED))
    endpoint = f"--runtime-endpoint=unix://{tmp_path}/absent.sock"
    told = topolet(*words, endpoint).out
    assert "interrupts  act  has 3 files" in told
    assert "\nWho runs on the CPUs of owners is not known: " in told
    assert topolet(*words, endpoint, "-o", "json").json["unseen"] in told


def test_an_unreadable_object_is_reported(tmp_path: Path, topolet: Topolet) -> None:
    invalid = owner(4, 4).pod("invalid")
    invalid["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "much"
    objects = saved(tmp_path, invalid, owner(4, 4).pod("p"))
    assert "Pod default/invalid" in topolet("explain", "p", objects, NAME).err


@pytest.mark.parametrize(
    "text", ["a: [", "- 1", "[]", '{"kind": 5}', "{kind: PodList, items: [1]}"]
)
def test_a_file_without_objects(text: str, tmp_path: Path, topolet: Topolet) -> None:
    objects = saved(tmp_path)
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    assert str(file) in topolet("explain", "p", objects, NAME, code=2).err


def test_a_placement_of_the_file_chooses_the_node(tmp_path: Path, topolet: Topolet) -> None:
    """The score depends on the saved pods. Of two equal nodes, the name decides."""
    objects = saved(tmp_path, owner(8, 8).pod("p"))
    file = tmp_path / "args.json"
    file.write_text(json.dumps({"kind": "NodeNUMAResourceArgs", "placement": "Residual"}))
    arguments = ["explain", "p", objects, NAME, "-o", "json", f"--scheduler-args-file={file}"]
    (found,) = topolet(*arguments).json["explanations"]
    scores = {each["node"]: each["offer"]["score"] for each in found["nodes"]}
    assert found["winner"] == max(scores, key=lambda node: scores[node])
    assert scores["a"] != scores["b"], "the nodes are equal"


SERVICE = {"kind": "Service", "metadata": {"name": "s", "namespace": "ns"}, "spec": {"ports": []}}


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (SERVICE, "Service ns/s is neither a pod nor a workload"),
        ({"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {}}, "ConfigMap c is neither"),
        ({"kind": "Widget", "spec": {"template": {"a": 1}}}, "Widget "),
        ({"kind": "Pod", "metadata": {"name": "p"}}, "Pod default/p: spec.containers is missing"),
    ],
)
def test_what_is_no_pod_is_not_explained(
    found: Object, problem: str, tmp_path: Path, topolet: Topolet
) -> None:
    objects = saved(tmp_path)
    file = tmp_path / "other.yaml"
    file.write_text(yaml.safe_dump(found))
    printed = topolet("explain", str(file), objects, NAME, code=2)
    assert printed.out == ""
    assert f"topolet: {file}: {problem}" in printed.err
    assert f"topolet: {file}: has no pod and no workload\n" in printed.err


def test_other_objects_beside_a_workload_are_named(tmp_path: Path, topolet: Topolet) -> None:
    objects = saved(tmp_path)
    template = {"spec": owner(8, 8).pod("ignored")["spec"]}
    job = {"kind": "CronJob", "metadata": {"name": "nightly"}}
    job["spec"] = {"jobTemplate": {"spec": {"template": template}}}
    file = tmp_path / "app.yaml"
    file.write_text(yaml.safe_dump_all([SERVICE, job]))
    printed = topolet("explain", str(file), objects, NAME)
    assert printed.out.startswith("Pod default/nightly: node ")
    assert "Service ns/s is neither" in printed.err


@pytest.fixture
def state(tmp_path: Path) -> str:
    """The state folder of a node with the pod ns/card, as an option."""
    near = Wanted(LinuxResources("4-7"), numa_nodes="1")
    card = PodWanted("ns/card", QoS.LS, Wanted(LinuxResources("0-7")), {"main": near})
    written = msgspec.structs.replace(EMPTY, pods={"u": card})
    (tmp_path / snapshots.FILE).write_bytes(snapshots.encode(written))
    return f"--state-dir={tmp_path}"


def test_the_place_of_a_pod_of_this_node(state: str, topolet: Topolet) -> None:
    text = topolet("explain", "card", "-n", "ns", "--place", state).out
    assert "  container main: CPUs 4-7 on NUMA nodes 1; near to its devices\n" in text
    printed = topolet("explain", "card", "-n", "ns", "--place", "-o", "json", state).json
    assert printed["containers"][0]["numa_nodes"] == "1"
    other = topolet("explain", "other", "-n", "ns", "--place=here", state, code=2)
    assert "the agent of this node does not know pod ns/other" in other.err


@pytest.mark.parametrize("flag", ["--place", "--now", "--values"])
def test_a_pod_of_another_node_is_asked_there(
    flag: str, programs: Path, state: str, topolet: Topolet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    kubectl = Kubectl(programs)
    kubectl.set_answers(pods=[agent_pod("a", RUNNING)])
    words = ("--context=lab", "--release-namespace=tools", state)
    topolet("explain", "web", "-n", "shop", flag, *words)
    assert kubectl.read("named").startswith("get pod web -n shop -o ")
    assert kubectl.read("executed") == (
        "exec -n tools a -c agent -- topolet explain"
        f" --namespace=shop --output=text {flag}=here web"
    )
    assert kubectl.read("context") == "--context=lab"
    kubectl.set_node_of_pod("")
    waiting = topolet("explain", "web", "-n", "shop", flag, *words, code=2)
    assert "pod shop/web has no node" in waiting.err


@pytest.mark.parametrize("flag", ["--place", "--now", "--values"])
def test_a_running_pod_must_be_named(flag: str, state: str, topolet: Topolet) -> None:
    for words in ((), ("web", "--objects=x"), ("--what-if-drained=n",)):
        assert f"{flag} needs" in topolet("explain", f"{flag}=here", state, *words, code=2).err


def test_the_error_of_a_runtime_that_does_not_answer_is_shown(
    tmp_path: Path, state: str, topolet: Topolet
) -> None:
    endpoint = f"--runtime-endpoint=unix://{tmp_path}/absent.sock"
    for flag in ("--now", "--values"):
        printed = topolet("explain", "web", f"{flag}=here", state, endpoint, code=2)
        assert "absent.sock" in printed.err
