"""An API server for each test that requests one."""

from tests.kube.hostile import server as server
