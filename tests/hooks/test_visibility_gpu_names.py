"""Names of GPUs as NVIDIA's runtime reads them: no spelling selects another pod's card."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.hooks import carriers, visibility
from agent.hooks.carriers import Carried
from agent.hooks.visibility import RefusedError, as_requested, device_changes
from agent.koordinator import service as koordinator_messages
from agent.model.devices.visibility import (
    MOUNT_ROOT,
    NodeDevice,
    NodeVisibility,
    Visibility,
    VisibleGpu,
    kind_and_name,
)
from agent.model.verdict import FailureReason
from agent.nri import messages
from agent.proto import cri_pb2, koordinator_hooks_pb2, nri_pb2
from agent.proxy import gate as cri
from tests.conftest import DATA
from tests.hooks import gpuruntime
from tests.hooks.gpuruntime import CARDS, node
from tests.hooks.refusals import refused

FOLDER = DATA / "gpunames"
ENV = "NVIDIA_VISIBLE_DEVICES"
EVERYTHING = frozenset(each.uuid for each in node().held)
NUMBERS = {each.index: each.uuid for each in node().held}


def rows(name: str) -> Iterator[dict[str, str]]:
    with (FOLDER / f"{name}.tsv").open() as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


SELECTED = [(json.loads(each["name"]), each["selects"]) for each in rows("libnvidia-container")]
READ_NAMES = [
    (each["carrier"], json.loads(each["text"]), json.loads(each["names"]))
    for each in rows("container-toolkit")
]


def devices(selects: str) -> frozenset[str] | None:
    if selects == "error":
        return None
    if selects == "all":
        return EVERYTHING
    return frozenset(NUMBERS[each] for each in selects.split(","))


@pytest.mark.parametrize(("name", "selects"), SELECTED)
def test_the_table_is_what_the_runtime_selects(name: str, selects: str) -> None:
    assert gpuruntime.selected(name) == devices(selects)


@pytest.mark.parametrize(("name", "selects"), SELECTED)
def test_a_name_means_what_the_runtime_selects_or_is_not_understood(
    name: str, selects: str
) -> None:
    selected = devices(selects)
    if selects == "all":
        assert carriers.names_all(name)
    elif selected is not None and carriers.is_understood(name):
        means = {each.uuid for each in node().held if carriers.refers(name, each.uuid, each.index)}
        assert means == selected


@pytest.mark.parametrize("held", sorted(EVERYTHING))
@pytest.mark.parametrize(("name", "selects"), SELECTED)
def test_no_spelling_of_a_gpu_selects_another_pods(name: str, selects: str, held: str) -> None:
    """Except `all`, which a pod without an allocation may name."""
    if held in (devices(selects) or ()) and selects != "all":
        for carried in (Carried((name,)), Carried(mounts=(f"{MOUNT_ROOT}/{name}",))):
            with refused(FailureReason.DEVICE_TAKEN, "another pod's"):
                device_changes("other", carried, Visibility(), node(held))


@pytest.mark.parametrize(
    "name",
    ["0000:3b:00.0", "+1", "-0", "2:0x", "2: 0", "2:0=x", "1x", "strange", "\u0661"],
)
def test_a_name_that_is_not_understood_is_refused_while_another_pod_has_a_gpu(name: str) -> None:
    card = CARDS[1].uuid
    for carried in (
        Carried((f"{CARDS[0].uuid},{name}",)),
        Carried(annotations=(("nvidia.cdi.k8s.io/p", name),)),
        Carried(mounts=(f"{MOUNT_ROOT}{name}",)),
    ):
        with refused(FailureReason.DEVICE_TAKEN, f"may be {card}, another pod's: write its UUID"):
            device_changes("other", carried, Visibility(), node(card))
        unallocated_card = device_changes("other", carried, Visibility(), node())
        assert unallocated_card == device_changes("owner", carried, Visibility(), node(card))
        assert not unallocated_card.environment


def test_a_name_that_is_not_understood_is_short_in_the_refusal() -> None:
    with pytest.raises(RefusedError) as error:
        as_requested("other", Carried(("x" * 100_000,)), node(CARDS[0].uuid))
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    "kind", ["nvidia.com/pgpu=0", "k8s.gpu.nvidia.com/claim=5f7e-vfio-0", "nvidia.com/card=0"]
)
def test_another_kind_of_nvidias_is_refused_while_another_pod_has_a_gpu(kind: str) -> None:
    path = kind.replace("=", "/")
    own = Visibility((VisibleGpu(CARDS[0].uuid, "0"),))
    for carried in (
        Carried((kind,)),
        Carried(cdi_devices=(kind,)),
        Carried(annotations=(("cdi.k8s.io/p", kind),)),
        Carried(mounts=(f"{MOUNT_ROOT}/cdi/{path}",)),
    ):
        for visible in (Visibility(), own):
            with refused(FailureReason.DEVICE_TAKEN, "another pod's"):
                device_changes("other", carried, visible, node(CARDS[1].uuid))
        device_changes("other", carried, Visibility(), node())


@pytest.mark.parametrize(
    "kind",
    [
        "nvidia.com/gds=all",
        "nvidia.com/imex-channel=0",
        "k8s.compute-domain.nvidia.com/claim=5f7e-channel-0",
        "other.example/nic=0",
    ],
)
def test_a_kind_without_cards_is_kept(kind: str) -> None:
    carried = Carried(cdi_devices=(kind,), annotations=(("cdi.k8s.io/p", kind),))
    changes = device_changes("other", carried, Visibility(), node(CARDS[1].uuid))
    assert changes == device_changes("other", Carried(), Visibility(), node(CARDS[1].uuid))


def test_an_instance_that_is_not_known_belongs_to_its_card() -> None:
    """The list of instances may be older than the driver's, and drivers before 470 name them by
    their card."""
    for name in (f"MIG-{CARDS[0].uuid}/1/0", "0:0", "mig0:0", "0:0::1"):
        with refused(FailureReason.DEVICE_TAKEN, f"is {CARDS[0].uuid}, another pod's"):
            as_requested("other", Carried((name,)), node(CARDS[0].uuid))
        as_requested("other", Carried((name,)), node(CARDS[1].uuid))
    known = NodeVisibility(
        (
            NodeDevice("GPU-a", "0"),
            NodeDevice("MIG-GPU-a/1/0", "0:0", "GPU-a", (), ("owner",)),
            NodeDevice("MIG-GPU-a/2/0", "0:1", "GPU-a"),
        )
    )
    for free in ("MIG-GPU-a/2/0", "0:1"):
        as_requested("other", Carried((free,)), known)


def test_a_number_is_refused_while_those_of_held_cards_are_not_known() -> None:
    """The driver numbers the cards; perhaps it has not answered yet."""
    unnumbered = NodeVisibility((NodeDevice("GPU-a", holders=("owner",)), NodeDevice("GPU-b")))
    for number in ("0", "gpu1", "0:0", "1::2"):
        with refused(FailureReason.DEVICE_TAKEN, "GPU-a, another pod's, whose number is not known"):
            as_requested("other", Carried((number,)), unnumbered)
    as_requested("other", Carried(("GPU-b",)), unnumbered)


def by_cri(carrier: str, text: str) -> Carried:
    message = cri_pb2.CreateContainerRequest()
    if carrier == "env":
        message.config.envs.add(key=ENV, value=text.encode())
    elif carrier == "mount":
        message.config.mounts.add(container_path=text, host_path="/dev/null")
    else:
        message.config.annotations["nvidia.cdi.k8s.io/p"] = text
    return cri.carried(message.SerializeToString())


def by_nri(carrier: str, text: str) -> Carried:
    container = nri_pb2.Container()
    if carrier == "env":
        container.env.append(f"{ENV}={text}".encode())
    elif carrier == "mount":
        container.mounts.add(destination=text, source="/dev/null")
    else:
        container.annotations["nvidia.cdi.k8s.io/p"] = text
    return messages.carried(container, nri_pb2.PodSandbox())


@pytest.mark.parametrize("read", [by_cri, by_nri])
@pytest.mark.parametrize(("carrier", "text", "names"), READ_NAMES)
def test_every_name_that_the_toolkit_reads_from_a_container_is_read(
    carrier: str, text: str, names: list[str], read: Callable[[str, str], Carried]
) -> None:
    found = read(carrier, text)
    read_names = [*found.names(), *(each for each, _ in found.claimed())]
    for each in names:
        plain_name = kind_and_name(each)[1].strip()
        is_all = read is by_nri and carrier == "env" and carriers.names_all(text)
        assert (
            is_all
            or plain_name == MOUNT_ROOT
            or any(plain_name.endswith(name) for name in read_names)
        ), read_names


@pytest.mark.parametrize(
    "value", ["all", "ALL", "All", "all,", ",all", " all", "0,all", "all,GPU-free", "aLL ,\t"]
)
def test_every_spelling_of_all_counts_as_the_images_by_nri(value: str) -> None:
    """The plugin can't distinguish the image's variable from the request's."""
    hidden = NodeVisibility(node(CARDS[0].uuid).held, "hide")
    changes = device_changes("other", by_nri("env", value), Visibility(), hidden)
    assert changes.environment == ((ENV, "void"),)


def annotated_by_cri(key: str, value: str) -> Carried:
    message = cri_pb2.CreateContainerRequest()
    message.sandbox_config.annotations[key] = value
    return cri.carried(message.SerializeToString())


def annotated_by_nri(key: str, value: str) -> Carried:
    sandbox = nri_pb2.PodSandbox(annotations={key: value})
    return messages.carried(nri_pb2.Container(), sandbox)


def annotated_for_koordinator(key: str, value: str) -> Carried:
    request = koordinator_hooks_pb2.ContainerResourceHookRequest(pod_annotations={key: value})
    return koordinator_messages.carried_by(request)


@pytest.mark.parametrize("read", [annotated_by_cri, annotated_by_nri, annotated_for_koordinator])
@pytest.mark.parametrize(
    "key",
    ["cdi.k8s.io/x", "nvidia.cdi.k8s.io", "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io/container.m"],
)
def test_annotations_of_a_pod_give_it_no_card_of_another_pod(
    key: str, read: Callable[[str, str], Carried]
) -> None:
    """NVIDIA's NRI plugin reads them, and CRI-O copies them to containers, where NVIDIA's runtime
    prefers them to the environment."""
    held, free = CARDS[0].uuid, CARDS[1].uuid
    own = Visibility((VisibleGpu(free, "1"),))
    for name in (held, "0", "all", "+0"):
        kinds = ("nvidia.com/gpu=", "runtime.nvidia.com/gpu=", "")
        for found in (read(key, f"{kind}{name}") for kind in kinds):
            with refused(FailureReason.DEVICE_TAKEN):
                device_changes("other", found, own, node(held))
            if name != "all":
                with refused(FailureReason.DEVICE_TAKEN):
                    device_changes("other", found, Visibility(), node(held))
    every = NodeVisibility(node(held).held, "deny")
    with refused(FailureReason.DEVICE_TAKEN, "names all GPUs"):
        device_changes("other", read(key, "nvidia.com/gpu=all"), Visibility(), every)
    own_card = read(key, f"nvidia.com/gpu={free}")
    assert device_changes("other", own_card, own, node(held)).environment == ((ENV, free),)
    assert device_changes("other", own_card, Visibility(), node(held)).environment == ()
    with refused(FailureReason.NOT_HONORED, "annotation of its pod names another GPU"):
        device_changes("other", own_card, Visibility(()), node(held))


def test_other_annotations_of_a_pod_name_no_devices() -> None:
    for key in ("note", "cdi.example/x", "xcdi.k8s.io/x"):
        for read in (annotated_by_cri, annotated_by_nri, annotated_for_koordinator):
            assert read(key, f"nvidia.com/gpu={CARDS[0].uuid}") == Carried()


PIECES = st.sampled_from(
    [
        *"0123ab:,.x=/+- \t\n\v",
        "::",
        "GPU-",
        "MIG-",
        "all",
        "ALL",
        "none",
        "void",
        "gpu",
        "mig",
        "2:0",
        "2:",
        "3b",
        "0000:3b:00.0",
        "10000:af:",
        "-18446744073709551615",
        "nvidia.com/gpu=",
        "cdi/",
        "\xa0",
        *EVERYTHING,
    ]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join) | st.text(max_size=12)
HELD = st.sampled_from(sorted(EVERYTHING))


@settings(max_examples=1000)
@given(TEXTS, TEXTS, HELD)
def test_no_name_gives_a_pod_the_card_of_another_pod(
    environment: str, mount: str, held: str
) -> None:
    """A pod without an allocation is refused, or the runtime selects other cards."""
    path = f"{MOUNT_ROOT}{mount}"
    for carried in (Carried((environment,)), Carried((environment,), mounts=(path,))):
        if carriers.names_all(environment):
            continue
        try:
            as_requested("other", carried, node(held), allocated=True)
        except RefusedError:
            continue
        assert held not in (gpuruntime.visible(carried.environment, carried.mounts) or ())


@settings(max_examples=1000)
@given(TEXTS, TEXTS, HELD)
def test_an_allocated_pod_gets_its_own_cards_under_any_name(
    environment: str, mount: str, own: str
) -> None:
    gpu = next(VisibleGpu(each.uuid, each.index) for each in node().held if each.uuid == own)
    path = f"{MOUNT_ROOT}{mount}"
    for carried in (Carried((environment,)), Carried((environment,), mounts=(path,))):
        try:
            changes = visibility.rewritten(carried, (gpu,))
        except visibility.RefusedError:
            continue
        values = [value for _, value in changes.environment] or [*carried.environment]
        mounts = [each for each in carried.mounts if each not in changes.removed_mounts]
        mounts += [each.container_path for each in changes.mounts]
        assert (gpuruntime.visible(values, mounts) or {own}) == {own}
