from tests.integration.apiserver.server import ApiServer


def test_start(apiserver: ApiServer) -> None:
    apiserver.namespace("t1")
    apiserver.node("n1")
    apiserver.account("t1", "agent", [])
    apiserver.pod("t1", "p1", "n1", "agent")
    print(apiserver.token("t1", "agent", "p1"))
    apiserver.compact()
    apiserver.restart_server()
    apiserver.kill_server()
    apiserver.kill_etcd()
    apiserver.start()
