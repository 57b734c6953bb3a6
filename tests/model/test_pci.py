import pytest

from agent.model.pci import address, address_key


@pytest.mark.parametrize(
    ("text", "kernels"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("000A:01:1f.7", "000a:01:1f.7"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("GPU-1", "GPU-1"),
        ("3b:00.0", "3b:00.0"),
        ("", ""),
    ],
)
def test_an_address_in_the_kernels_words(text: str, kernels: str) -> None:
    assert address(text) == kernels


def test_addresses_are_ordered_as_numbers() -> None:
    addresses = ["nothing", "10000:00:00.0", "0000:af:00.0", "0000:18:00.10", "0000:18:00.2"]
    assert sorted(addresses, key=address_key) == [
        "0000:18:00.2",
        "0000:af:00.0",
        "10000:00:00.0",
        "nothing",
        "0000:18:00.10",
    ]
