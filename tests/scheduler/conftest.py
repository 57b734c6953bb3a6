"""An API server and a clock for each test that names one."""

from tests.kube.fake_api_server import server as server
from tests.scheduler.clock import clock as clock
