"""The fake driver has the ABI of NVIDIA's own header and of the binding's structures."""

from __future__ import annotations

import ctypes

import pytest

from tests.discover import fakenvml

pynvml = pytest.importorskip("pynvml")

pytestmark = pytest.mark.skipif(fakenvml.missing() is not None, reason=str(fakenvml.missing()))


@pytest.mark.parametrize(("file", "flags"), [("layout.c", ()), ("fake.c", ("-DNVML_HEADER",))])
def test_sizes_offsets_and_signatures_are_those_of_nvidias_header(
    file: str, flags: tuple[str, ...]
) -> None:
    folder = fakenvml.nvml_header()
    if isinstance(folder, str):
        pytest.skip(folder)
    path = str(fakenvml.SOURCES / file)
    assert fakenvml.compile_c("-fsyntax-only", f"-isystem{folder}", *flags, path) == ""


def test_the_bindings_structures_have_the_same_sizes() -> None:
    """On x86-64 and arm64; layout.c compares the numbers with nvml.h."""
    sizes = {
        pynvml.nvmlPciInfo_t: 68,
        pynvml.c_nvmlMemory_t: 24,
        pynvml.c_nvmlMemory_v2_t: 40,
        pynvml.c_nvmlProcessInfo_t: 24,
        pynvml.c_nvmlProcessUtilizationSample_t: 32,
        pynvml.c_nvmlDeviceAttributes: 40,
        pynvml.c_nvmlEventData_t: 32,
        pynvml.c_nvmlFieldValue_t: 40,
    }
    assert {each.__name__: ctypes.sizeof(each) for each in sizes} == {
        each.__name__: size for each, size in sizes.items()
    }
