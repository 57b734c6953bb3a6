"""What the cluster said last, kept over restarts: while no server answers, nothing is decided
otherwise than before."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import msgspec

from agent.allocate.present import words
from agent.host import files
from agent.model import jsontext
from agent.model.apinode import ApiNode
from agent.model.devicefiles import NO_FILES, DeviceFiles
from agent.model.devicelist import Published
from agent.model.jsontext import JsonError
from agent.model.podwords import Words
from agent.node.assigned import Assigned

log = logging.getLogger(__name__)

_NODE_KEYS = ("node.koordinator.sh/", "topolet.io/")


class Known(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of the Node, by uid of the runtime's pods, and of devices, which have their numbers from the
    Device object (None: nobody ever said). `files`: how containers reach the devices, by our own
    word: some can't be seen while pods have them."""

    node: ApiNode = ApiNode()
    pods: dict[str, Words] = {}
    devices: Published | None = None
    files: DeviceFiles = NO_FILES


class Memory:
    """Known, in a file that is written when it changes; to lose it costs nothing while a server
    answers."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.known = self._stored()

    def update(self, assigned: Assigned, listed: Iterable[str]) -> Known:
        """`listed`: uids of the pods that the runtime has."""
        self._keep(known(self.known, assigned, listed))
        return self.known

    def remember(self, devices: Published, files: DeviceFiles = NO_FILES) -> None:
        """What is said of devices from now on."""
        self._keep(msgspec.structs.replace(self.known, devices=devices, files=files))

    def _keep(self, new: Known) -> None:
        """A file that can't be written is logged, and tried again with the next change."""
        if new == self.known:
            return
        self.known = new
        try:
            files.replace(self._path, msgspec.json.encode(new), durable=False, mode=0o600)
        except OSError as error:
            log.error("what the cluster said last is not kept: %s", error)

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
    if assigned.node is not None:
        labels, annotations = assigned.node.labels, assigned.node.annotations
        node = ApiNode(assigned.node.uid, _of_node(labels), _of_node(annotations))
    told = words(assigned.pods.values())
    said = {uid: found for uid in sorted(listed) if (found := told.get(uid, last.pods.get(uid)))}
    return Known(node, said, last.devices, last.files)


_decoder = msgspec.json.Decoder(Known)


def _of_node(texts: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in sorted(texts.items()) if key.startswith(_NODE_KEYS)}
