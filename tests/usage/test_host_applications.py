"""Where the applications of a host are."""

from __future__ import annotations

import msgspec
import pytest

from agent.model.node_slo import CgroupPath, HostApplication, node_slo
from agent.usage.host_applications import groups

SYSTEMD = "/kubepods.slice"


@pytest.mark.parametrize(
    ("application", "group"),
    [
        ({"qos": "LS"}, "/host-latency-sensitive/a"),
        ({"qos": "LSR"}, "/host-latency-sensitive/a"),
        ({"qos": "BE"}, "/host-best-effort/a"),
        ({"qos": "SYSTEM"}, "/a"),
        ({}, "/a"),
        ({"cgroupPath": {"parentDir": "b.slice/", "relativePath": "/c"}}, "/b.slice/c"),
        ({"cgroupPath": {"base": "CgroupRoot", "relativePath": "./c"}}, "/c"),
        ({"cgroupPath": {"base": "Kubepods", "relativePath": "c"}}, "/kubepods.slice/c"),
        (
            {"cgroupPath": {"base": "KubepodsBesteffort", "relativePath": "c"}},
            "/kubepods.slice/kubepods-besteffort.slice/c",
        ),
        (
            {"cgroupPath": {"base": "KubepodsBurstable", "parentDir": "b", "relativePath": "c"}},
            "/kubepods.slice/kubepods-burstable.slice/b/c",
        ),
    ],
)
def test_a_path_or_the_class_says_where_an_application_is(
    application: dict[str, object], group: str
) -> None:
    converted = msgspec.convert({"name": "a", **application}, HostApplication)
    assert groups([converted], SYSTEMD) == {"a": group}


def test_the_groups_of_the_driver_cgroupfs_have_plain_names() -> None:
    burstable = HostApplication("a", cgroup_path=CgroupPath("KubepodsBurstable"))
    assert groups([burstable], "/kubepods") == {"a": "/kubepods/burstable"}


def test_applications_without_a_group_of_their_own_have_none() -> None:
    of_pods = HostApplication("a", cgroup_path=CgroupPath("Kubepods"))
    assert groups([of_pods], None) == {}
    machine = HostApplication("b", cgroup_path=CgroupPath("CgroupRoot", "/", "."))
    assert groups([machine, HostApplication()], SYSTEMD) == {}
    twice = HostApplication("c"), HostApplication("c", cgroup_path=CgroupPath(relative_path="d"))
    assert groups(twice, SYSTEMD) == {"c": "/c"}


@pytest.mark.parametrize(
    "application",
    [
        {"name": "../a"},
        {"cgroupPath": {"parentDir": "a/.."}},
        {"cgroupPath": {"relativePath": "a\n/../b"}},
    ],
)
def test_a_path_that_leads_upwards_is_a_trouble(application: dict[str, object]) -> None:
    slo, troubles = node_slo({"spec": {"hostApplications": [application]}})
    assert slo.host_applications == ()
    assert set(troubles) == {"hostApplications"}
