import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hooks import cri, wire
from agent.proto import cri_pb2 as pb

CREATE_CPUSET = (*cri.CREATE_RESOURCES, cri.CPUSET)
CREATE_QUOTA = (*cri.CREATE_RESOURCES, cri.CPU_QUOTA)
text = st.text(max_size=20)
int64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def create_requests(draw: st.DrawFn) -> pb.CreateContainerRequest:
    request = pb.CreateContainerRequest(pod_sandbox_id=draw(text))
    if draw(st.booleans()):
        request.config.metadata.name = draw(text)
        request.config.args.extend(draw(st.lists(text, max_size=3)))
    if draw(st.booleans()):
        request.config.linux.resources.cpu_quota = draw(int64)
        request.config.linux.resources.cpuset_cpus = draw(text)
        request.config.linux.resources.cpuset_mems = draw(text)
    if draw(st.booleans()):
        request.sandbox_config.metadata.uid = draw(text)
        request.sandbox_config.linux.cgroup_parent = draw(text)
        for key, value in draw(st.dictionaries(text, text, max_size=3)).items():
            request.sandbox_config.annotations[key] = value
    return request


@given(create_requests())
def test_reads_what_protobuf_reads(request_: pb.CreateContainerRequest) -> None:
    raw = request_.SerializeToString()
    assert wire.text(raw, 1) == request_.pod_sandbox_id
    assert wire.text(wire.merged(raw, 2, 1), 1) == request_.config.metadata.name
    resources = request_.config.linux.resources
    assert wire.text(wire.merged(raw, 2, 15, 1), 6) == resources.cpuset_cpus
    assert wire.number(wire.merged(raw, 2, 15, 1), 2) == resources.cpu_quota
    assert wire.string_map(wire.merged(raw, 3), 7) == dict(request_.sandbox_config.annotations)


@given(create_requests(), text)
def test_patch_changes_one_field_and_nothing_else(
    request_: pb.CreateContainerRequest, value: str
) -> None:
    raw = request_.SerializeToString()
    patched = pb.CreateContainerRequest.FromString(raw + wire.patch(CREATE_CPUSET, value))
    assert patched.config.linux.resources.cpuset_cpus == value
    request_.config.linux.resources.cpuset_cpus = value
    assert patched == request_


@given(create_requests(), int64)
def test_patch_of_a_number_changes_one_field_and_nothing_else(
    request_: pb.CreateContainerRequest, value: int
) -> None:
    raw = request_.SerializeToString()
    patched = pb.CreateContainerRequest.FromString(raw + wire.patch(CREATE_QUOTA, value))
    assert patched.config.linux.resources.cpu_quota == value
    request_.config.linux.resources.cpu_quota = value
    assert patched == request_


@given(create_requests(), create_requests())
def test_split_messages_are_read_merged(
    one: pb.CreateContainerRequest, other: pb.CreateContainerRequest
) -> None:
    raw = one.SerializeToString() + other.SerializeToString()
    merged = pb.CreateContainerRequest.FromString(raw)
    cpuset = merged.config.linux.resources.cpuset_cpus
    assert wire.text(wire.merged(raw, 2, 15, 1), 6) == cpuset


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_as_wire_errors(raw: bytes) -> None:
    try:
        payloads = [payload for _, kind, payload in wire.fields(raw) if kind == wire.BYTES]
    except wire.WireError:
        return
    assert sum(map(len, payloads)) <= len(raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\x0a\x05abc", "field 1 runs past the end"),
        (b"\x0a", "cut off"),
        (b"\x08" + b"\xff" * 11, "cut off"),
        (b"\x0b", "wire type 3 of field 1"),
        (b"\x00\x00", "field 0"),
        (b"\x0d\x00", "field 1 runs past"),
    ],
)
def test_malformed_message_is_named(raw: bytes, message: str) -> None:
    with pytest.raises(wire.WireError, match=message):
        list(wire.fields(raw))


def test_string_that_is_not_utf8_is_an_error() -> None:
    with pytest.raises(wire.WireError, match="UTF-8"):
        wire.text(b"\x0a\x01\xff", 1)


@given(create_requests(), st.booleans())
def test_what_is_filtered_out_is_gone_and_nothing_else(
    request_: pb.CreateContainerRequest, drops: bool
) -> None:
    request_.config.mounts.add(container_path="/a")
    request_.config.mounts.add(container_path="/b")
    raw = request_.SerializeToString() + wire.patch((99,), "unknown")

    def keeps(field: int, payload: bytes) -> bool:
        return not (drops and field == 7 and wire.text(payload, 1) == "/a")

    left = wire.filtered(raw, keeps, 2)
    expected = pb.CreateContainerRequest.FromString(raw)
    if drops:
        del expected.config.mounts[0]
    assert pb.CreateContainerRequest.FromString(left) == expected
    assert drops or left == raw
