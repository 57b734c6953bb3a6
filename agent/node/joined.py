"""The pods of this node, from both who tell of them: the runtime says what is there, the cluster
what it shall be.

A pod's labels and annotations change in the API after its sandbox was made, so there they count,
but for static pods: their source is the kubelet's, and the mirror in the API only shows it.
Whatever the API says of a pod's end, it has its CPUs until the runtime lists it no more; and one
that was given to this node claims its CPUs before the runtime has it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import msgspec

from agent.host import files
from agent.model import jsontext
from agent.model.annotations import KEYS_READ
from agent.model.apinode import ApiNode
from agent.model.apipods import ApiPod
from agent.model.jsontext import JsonError
from agent.model.pods import Pod
from agent.model.qos import QOS_LABEL
from agent.node.assigned import Assigned

log = logging.getLogger(__name__)

_NODE_KEYS = "node.koordinator.sh/"
_LABELS_READ = (QOS_LABEL,)


class Words(msgspec.Struct, frozen=True, omit_defaults=True):
    """Those labels and annotations of a pod that decisions read."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Known(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the cluster said last, of the Node and by uid of the runtime's pods; it outlives a
    restart, so that while no server answers nothing is decided otherwise than before."""

    node: ApiNode = ApiNode()
    pods: dict[str, Words] = {}


class Memory:
    """Known, in a file that is written when it changes; to lose it costs nothing while a server
    answers."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.known = self._stored()

    def update(self, assigned: Assigned, listed: Iterable[str]) -> Known:
        """`listed`: uids of the pods that the runtime has. A file that can't be written is logged,
        and tried again with the next change."""
        new = known(self.known, assigned, listed)
        if new != self.known:
            self.known = new
            try:
                files.replace(self._path, msgspec.json.encode(new), durable=False, mode=0o600)
            except OSError as error:
                log.error("what the cluster said last is not kept: %s", error)
        return new

    def _stored(self) -> Known:
        try:
            with open(self._path, "rb") as file:
                return jsontext.decode(_decoder, file.read())
        except FileNotFoundError:
            return Known()
        except (OSError, JsonError) as error:
            log.warning("what the cluster said last is lost: %s: %s", self._path, error)
            return Known()


def known(last: Known, assigned: Assigned, listed: Iterable[str]) -> Known:
    """The last words of the Node, and of every pod that the runtime has: also of one that the API
    has no more."""
    node = last.node
    if (told := assigned.node) is not None:
        node = ApiNode(told.uid, _of_node(told.labels), _of_node(told.annotations))
    words = {
        pod.runtime_uid: Words(
            _only(_LABELS_READ, pod.labels),
            _only(KEYS_READ, pod.annotations),
        )
        for pod in assigned.pods.values()
        if not pod.mirror
    }
    said = {uid: found for uid in sorted(listed) if (found := words.get(uid, last.pods.get(uid)))}
    return Known(node, said)


def with_words(pods: Iterable[Pod], said: Mapping[str, Words]) -> tuple[Pod, ...]:
    """The pods as the cluster wants them."""
    return tuple(_with(pod, said[pod.uid]) if pod.uid in said else pod for pod in pods)


def coming(assigned: Iterable[ApiPod], listed: Iterable[str]) -> tuple[Pod, ...]:
    """The pods that are this node's and not `listed` (uids of the runtime's) yet, but for those
    whose end has begun."""
    there = frozenset(listed)
    return tuple(
        Pod(
            pod.runtime_uid,
            pod.namespace,
            pod.name,
            pod.labels,
            pod.annotations,
            pod.kube_class,
            pod.created_at,
        )
        for pod in sorted(assigned, key=lambda each: each.runtime_uid)
        if not (pod.terminal or pod.deleted or pod.runtime_uid in there)
    )


_decoder = msgspec.json.Decoder(Known)


def _with(pod: Pod, said: Words) -> Pod:
    labels = _without(_LABELS_READ, pod.labels) | said.labels
    annotations = _without(KEYS_READ, pod.annotations) | said.annotations
    if (labels, annotations) == (pod.labels, pod.annotations):
        return pod
    return msgspec.structs.replace(pod, labels=labels, annotations=annotations)


def _only(keys: Iterable[str], texts: Mapping[str, str]) -> dict[str, str]:
    return {key: texts[key] for key in keys if key in texts}


def _without(keys: tuple[str, ...], texts: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in texts.items() if key not in keys}


def _of_node(texts: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in sorted(texts.items()) if key.startswith(_NODE_KEYS)}
