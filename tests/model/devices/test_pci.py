from agent.model.devices.pci import address_key


def test_addresses_are_ordered_as_numbers() -> None:
    addresses = ["nothing", "10000:00:00.0", "0000:af:00.0", "0000:18:00.10", "0000:18:00.2"]
    assert sorted(addresses, key=address_key) == [
        "0000:18:00.2",
        "0000:af:00.0",
        "10000:00:00.0",
        "nothing",
        "0000:18:00.10",
    ]
