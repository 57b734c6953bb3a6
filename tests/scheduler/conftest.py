"""An API server for each test that names one."""

from tests.kube.hostile import server as server
