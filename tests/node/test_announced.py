import msgspec

from agent.model.doorbell import PodComes
from agent.node.announced import PATIENCE_SECONDS, Announced

RING = PodComes("u", "ns", "n", {}, {"k": "1"}, "/kubepods/burstable/podu")


def test_kept_until_the_runtime_lists_it() -> None:
    announced = Announced()
    announced.add(RING, 0.0, 7)
    (pod,) = announced.missing_from([], 1.0)
    assert (pod.uid, pod.title, pod.kube_class, pod.created_at) == ("u", "ns/n", "burstable", 7)
    assert announced.missing_from(["u"], 2.0) == ()
    assert announced.missing_from([], 3.0) == (), "a pod that was listed has ended"


def test_second_ring_renews_all_but_the_rank() -> None:
    announced = Announced()
    announced.add(RING, 0.0, 7)
    changed = msgspec.structs.replace(RING, annotations={"k": "2"})
    announced.add(changed, PATIENCE_SECONDS - 1, 99)
    (pod,) = announced.missing_from([], PATIENCE_SECONDS + 1)
    assert (pod.created_at, pod.annotations) == (7, {"k": "2"})


def test_patience_ends() -> None:
    announced = Announced()
    announced.add(RING, 0.0, 7)
    assert announced.missing_from([], PATIENCE_SECONDS) == ()


def test_failed_sandbox_is_forgotten_once_or_twice() -> None:
    announced = Announced()
    announced.add(RING, 0.0, 7)
    announced.drop("u")
    announced.drop("u")
    assert announced.missing_from([], 0.0) == ()
