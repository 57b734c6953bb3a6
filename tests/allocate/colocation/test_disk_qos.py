"""The values of disks that `blkioQOS` means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.colocation import disk_qos
from agent.model.node_slo import IoConfig

MODEL = IoConfig(
    enable_user_model=True,
    model_read_bps=1,
    model_read_seq_iops=2,
    model_read_rand_iops=3,
    model_write_bps=4,
    model_write_seq_iops=5,
    model_write_rand_iops=6,
)
amounts = st.one_of(st.none(), st.integers(0, (1 << 63) - 1))
configs = st.builds(
    IoConfig, read_bps=amounts, write_bps=amounts, read_iops=amounts, write_iops=amounts
)


def test_limits_have_the_names_of_the_kernel() -> None:
    config = IoConfig(read_bps=10, write_bps=0, read_iops=7, write_iops=(1 << 32) - 1)
    assert disk_qos.limits(config, "8:0", 2, groups=3) == {
        "io.max 8:0 rbps": "10",
        "io.max 8:0 wbps": "max",
        "io.max 8:0 riops": "7",
        "io.max 8:0 wiops": "max",
    }
    assert disk_qos.limits(config, "8:0", 1, groups=3) == {
        "blkio.throttle.read_bps_device 8:0": "3",
        "blkio.throttle.write_bps_device 8:0": "0",
        "blkio.throttle.read_iops_device 8:0": "2",
        "blkio.throttle.write_iops_device 8:0": "0",
    }


@given(configs, st.integers(0, 200))
def test_containers_together_have_at_most_the_limit_and_each_has_one(
    config: IoConfig, containers: int
) -> None:
    whole = disk_qos.limits(config, "8:0", 1)
    shares = disk_qos.limits(config, "8:0", 1, containers)
    assert whole.keys() == shares.keys()
    for name, text in whole.items():
        assert (int(text) == 0) == (int(shares[name]) == 0), "no limit stays none"
        assert int(shares[name]) * containers <= max(int(text), containers)


@pytest.mark.parametrize(
    ("one", "other", "lower"),
    [("5", "7", "5"), ("0", "7", "7"), ("max", "7", "7"), ("7", "max", "7"), ("0", "0", "0")],
)
def test_the_lower_limit_holds(one: str, other: str, lower: str) -> None:
    assert disk_qos.stricter(one, other) == lower


def test_what_disks_cost_has_the_defaults_of_koordlet() -> None:
    assert disk_qos.cost(IoConfig(read_latency=500, write_latency_percent=0), "8:0", "io") == {
        "io.cost.qos 8:0": (
            "enable=1 ctrl=user rpct=95.00 rlat=500 wpct=0.00 wlat=3000 min=1.00 max=10000.00"
        )
    }
    assert disk_qos.cost(MODEL, "8:0", "blkio") == {
        "blkio.cost.model 8:0": (
            "ctrl=user model=linear rbps=1 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6"
        )
    }
    assert not disk_qos.cost(IoConfig(read_bps=1, enable_user_model=False), "8:0", "io")


def test_what_has_no_effect_is_named() -> None:
    machine = IoConfig(read_bps=1, io_weight_percent=50, enable_user_model=True, model_read_bps=1)
    assert disk_qos.faults(machine, of_machine=True) == [
        "enableUserModel needs modelReadSeqIOPS, modelReadRandIOPS, modelWriteBPS, "
        "modelWriteSeqIOPS, modelWriteRandIOPS",
        "readBPS, ioWeightPercent has no effect: the group of the machine has neither limits nor a "
        "weight",
    ]
    assert disk_qos.faults(IoConfig(read_bps=1, read_latency=9), of_machine=False) == [
        "readLatency has no effect: the kernel has one cost of a disk: it belongs to cgroupRoot"
    ]
    assert not disk_qos.faults(MODEL, of_machine=True)
    assert not disk_qos.faults(IoConfig(read_bps=1, io_weight_percent=1), of_machine=False)
