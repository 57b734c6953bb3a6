"""The API server of a test."""

from tests.kube.fake_api_server import server as server
