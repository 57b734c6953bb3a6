import contextlib
import http.client
import threading

from agent.host.loop import Loop
from agent.http.peers import NodeAddresses
from agent.telemetry.frontend_metrics import serve_pages
from tests.waiting import DEADLINE_SECONDS


def test_readiness_has_the_reason_and_liveness_does_not() -> None:
    loop = Loop()
    problem = "the runtime does not answer"
    pages = serve_pages(loop, ("127.0.0.1", 0), NodeAddresses(), lambda: "", lambda: problem)
    assert pages is not None
    thread = threading.Thread(target=loop.run)
    thread.start()

    def page(path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=DEADLINE_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read()

    try:
        assert page("/readyz") == (503, b"the runtime does not answer\n")
        assert page("/healthz") == (200, b"ok\n")
        problem = ""
        assert page("/readyz") == (200, b"ok\n")
    finally:
        loop.stop()
        thread.join(DEADLINE_SECONDS)
        pages.close()
        loop.close()
