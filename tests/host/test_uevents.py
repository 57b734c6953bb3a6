import pytest

from agent.host.uevents import Uevents, subsystem


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (b"online@/devices/system/cpu/cpu1\0ACTION=online\0SUBSYSTEM=cpu\0SEQNUM=7\0", "cpu"),
        (b"add@/devices/x\0ACTION=add\0XSUBSYSTEM=cpu\0", ""),
        (b"SUBSYSTEM=cpu\0", ""),
        (b"libudev\0\xfe\xed\xca\xfeSUBSYSTEM=cpu", ""),
        (b"", ""),
        (b"a@b\0SUBSYSTEM=\xff\0", "\ufffd"),
    ],
)
def test_subsystem_of_a_message(message: bytes, named: str) -> None:
    assert subsystem(message) == named


def test_nothing_has_come_of_a_subsystem_that_is_not_there() -> None:
    uevents = Uevents()
    assert not uevents.read(frozenset({"no such subsystem"}))
    uevents.close()
