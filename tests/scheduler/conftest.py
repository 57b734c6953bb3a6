"""An API server and a clock for each test that names one."""

from tests.kube.hostile import server as server
from tests.scheduler.clock import clock as clock
