"""An API server, a connection to it and a clock for each test that names one."""

from tests.kube.clock import clock as clock
from tests.kube.fake_api_server import server as server
from tests.kube.fake_api_server import transport as transport
