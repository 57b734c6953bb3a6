"""The messages of CRI, NRI, ttrpc, Koordinator's hooks, DRA and PodResources, generated from
protos/; the types that all of them share."""

from google.protobuf.message import DecodeError, Message

__all__ = ["DecodeError", "Message"]
