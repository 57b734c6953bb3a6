"""The node's page in a real browser, while the machine changes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.http.server import HttpServer
from agent.usage.past import PastHour, PastLoad, PastPool, Values
from tests.fixtures.browser import Browser, Tab
from tests.fixtures.browser import browser as browser
from tests.fixtures.page import LARGE, ServedNode, served


@pytest.fixture
def node(tmp_path: Path) -> ServedNode:
    node = ServedNode(tmp_path)
    node.pod("web", "LS")
    node.pod("batch", "BE")
    node.reconcile()
    node.pod("db", "LSE", "0-3,32-35")
    node.pod("train", "LSR", "16-17,48-49")
    node.cards = {0: ("ns/db",)}
    node.busy = {0: 0.5}
    node.reconcile()
    return node


@pytest.fixture
def server(node: ServedNode) -> Iterator[HttpServer]:
    with served(node) as found:
        yield found


@pytest.fixture
def tab(browser: Browser, server: HttpServer) -> Iterator[Tab]:
    tab = browser.tab()
    tab.resize(1440, 900)
    tab.open(f"http://localhost:{server.port}/page")
    tab.until("document.querySelectorAll('.cpu[data-cpu]').length === 64", "the CPUs are drawn")
    tab.until("document.querySelectorAll('#pods tr').length === 4", "the pods are drawn")
    yield tab
    tab.close()


def owned(tab: Tab) -> list[int]:
    cells = "document.querySelectorAll('.cpu.owned[data-cpu]')"
    return sorted(tab.run(f"[...{cells}].map(each => Number(each.dataset.cpu))"))


def test_the_machine_changes_while_the_page_is_open(node: ServedNode, tab: Tab) -> None:
    """An owner ends, a claim is refused, a card becomes unhealthy, a CPU gets load."""
    assert owned(tab) == [0, 1, 2, 3, 16, 17, 32, 33, 34, 35, 48, 49]
    assert tab.run("document.getElementById('attention').hidden")
    node.end_pod("train")
    node.reconcile()
    node.pod("late", "LSE", "0-1,32-33")
    node.reconcile()
    node.unhealthy = {6: "Xid 79: the GPU has fallen off the bus"}
    tab.until("!document.getElementById('attention').hidden", "attention")
    tab.until("document.querySelectorAll('#attention-list li').length === 2", "two findings")
    assert "CPUs 0-1,32-33 belong to pod ns/db" in tab.text("#attention-list")
    assert "Xid 79" in tab.text("#attention-list")
    assert owned(tab) == [0, 1, 2, 3, 32, 33, 34, 35]
    assert "ns/train" not in tab.text("#pods")
    assert "ns/train: The pod is gone" in tab.text("#changes")
    node.busy = {5: 1.0}
    node.load()
    tab.until("document.querySelector('[data-cpu=\"5\"]').load === '100'", "load of CPU 5")
    assert tab.violations() == []
    assert tab.errors == []


@pytest.mark.long
def test_a_click_opens_a_cpu_a_pod_and_a_card_each_with_an_address(tab: Tab) -> None:
    tab.click("[data-cpu='2']")
    tab.until("location.hash === '#cpu=2' && !document.getElementById('detail').hidden")
    shown = tab.text("#detail")
    for text in ("CPU 2", "ns/db", "LSE", "resource-status", "UTC", "with CPU 34", "Socket"):
        assert text in shown
    tab.click("#detail a[href='#pod=ns/db']")
    tab.until("document.getElementById('detail-title').textContent === 'Pod ns/db'")
    assert "The pod owns CPUs 0-3,32-35" in tab.text("#detail")
    tab.click("#detail a[href^='#device=']")
    tab.until("document.getElementById('detail-title').textContent.startsWith('GPU 0')")
    shown = tab.text("#detail")
    for text in ("NVIDIA H100 80GB HBM3", "healthy", "ns/db", "18 NVLinks", "PCIe switch"):
        assert text in shown
    tab.press("Escape")
    tab.until("document.getElementById('detail').hidden && location.hash === ''", "it is closed")
    assert tab.errors == []


@pytest.mark.long
def test_an_address_opens_its_pod(server: HttpServer, tab: Tab) -> None:
    tab.open("about:blank")
    tab.open(f"http://127.0.0.1:{server.port}/page#pod=ns/train&node=node-b")
    tab.until("document.getElementById('detail-title')?.textContent === 'Pod ns/train'")
    assert "The address is of node node-b; this is node-a." in tab.text("#detail")
    tab.run("location.hash = '#pod=ns/never'")
    tab.until("document.getElementById('detail').innerText.includes('does not see this pod')")


@pytest.mark.long
def test_search_by_name_and_by_cpu(tab: Tab) -> None:
    tab.press("/")
    tab.until("document.activeElement.id === 'search'", "the search has the focus")
    tab.write("train")
    tab.until("document.querySelectorAll('#pods tr').length === 1", "one pod")
    assert tab.run("document.querySelectorAll('.cpu[data-cpu]:not(.dim)').length") == 4
    tab.press("Escape")
    tab.until("document.querySelectorAll('#pods tr').length === 4", "all pods")
    tab.run("document.getElementById('search').value = ''")
    tab.write("2-3")
    tab.until("document.querySelectorAll('.cpu[data-cpu]:not(.dim)').length === 2", "two CPUs")
    assert "ns/db" in tab.text("#pods")


@pytest.mark.long
def test_the_page_is_usable_by_keyboard(tab: Tab) -> None:
    assert tab.run("document.querySelectorAll('.cpu[data-cpu][tabindex=\"0\"]').length") == 1
    tab.run("document.querySelector('.cpu[tabindex=\"0\"]').focus()")
    tab.press("ArrowRight")
    assert tab.run("document.activeElement.dataset.cpu") == "32"
    tab.press("End")
    assert tab.run("document.activeElement.dataset.cpu") == "63"
    tab.press("Home")
    tab.press("Enter", text="\r")
    tab.until("document.activeElement.id === 'detail-title'", "the details have the focus")
    assert tab.text("#detail-title") == "CPU 0"
    tab.press("Escape")
    tab.until("document.activeElement.dataset.cpu === '0'", "the focus is back")


@pytest.mark.long
def test_pause_keeps_what_is_shown(node: ServedNode, tab: Tab) -> None:
    tab.click("#pause")
    tab.until("document.getElementById('status-text').textContent === 'Paused'")
    node.pod("new", "LS")
    node.reconcile()
    tab.events(2.5)
    assert "ns/new" not in tab.text("#pods")
    tab.click("#pause")
    tab.until("document.getElementById('pods').innerText.includes('ns/new')", "it goes on")


@pytest.mark.long
def test_an_agent_that_does_not_answer_and_its_return_are_reported(
    node: ServedNode, server: HttpServer, tab: Tab
) -> None:
    port = server.port
    server.close()
    tab.until("!document.getElementById('stale').hidden", "the page reports it")
    text = tab.text("#stale")
    assert "The agent of node-a does not answer (no connection)" in text
    assert "UTC" in text
    assert tab.text("#status-text") == "No answer"
    with served(node, port):
        tab.until("document.getElementById('stale').hidden", "it answers again")
        tab.until("document.getElementById('status-text').textContent === 'Live'")


@pytest.mark.long
def test_an_agent_that_is_not_ready_gives_the_reason(node: ServedNode, tab: Tab) -> None:
    node.problem = "the runtime does not answer: connection refused"
    tab.until("document.getElementById('attention').innerText.includes('connection refused')")


@pytest.mark.long
def test_markup_in_names_is_shown_as_text(node: ServedNode, tab: Tab) -> None:
    """Kubernetes refuses such names; the page does not depend on that."""
    node.cards = {1: ("<img src=x onerror=alert(1)>",)}
    node.unhealthy = {2: "<script>document.title='owned'</script>"}
    tab.until("document.getElementById('attention').innerText.includes('<script>')")
    assert tab.run("document.querySelectorAll('main img, main script').length") == 0
    assert tab.errors == []


@pytest.mark.long
def test_the_policy_refuses_other_scripts_and_html(tab: Tab) -> None:
    for what in (
        "document.body.innerHTML = 'x'",
        "document.createElement('script').text = 'window.ran = 1'",
        "document.body.setAttribute('onclick', 'window.ran = 1')",
    ):
        name = tab.run(
            f"(() => {{ try {{ {what}; return ''; }} catch (it) {{ return it.name; }} }})()"
        )
        assert name == "TypeError", what
    elsewhere = "fetch('http://127.0.0.1:1/').then(() => 'sent', error => error.name)"
    assert tab.run(elsewhere) == "TypeError"
    assert tab.run("fetch('/page/load').then(reply => reply.status)") == 200


@pytest.mark.long
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390], ids=["wide", "phone"])
def test_axe_finds_no_violation(
    node: ServedNode, tab: Tab, tmp_path: Path, width: int, dark: bool
) -> None:
    node.pod("late", "LSE", "0-1,32-33")
    node.reconcile()
    node.unhealthy = {6: "Xid 79"}
    tab.until("!document.getElementById('attention').hidden")
    tab.resize(width, 844, dark=dark)
    for address in ("", "#pod=ns/db", "#cpu=5"):
        tab.run(f"location.hash = '{address}'")
        tab.until(f"document.getElementById('detail').hidden === {'false' if address else 'true'}")
        assert tab.violations() == []
        assert tab.run("document.documentElement.scrollWidth") <= width
    tab.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000


@pytest.mark.long
def test_only_the_agent_is_asked(server: HttpServer, tab: Tab) -> None:
    assert all(
        each.startswith((f"http://localhost:{server.port}/page", "data:")) for each in tab.requested
    )


@pytest.mark.long
def test_load_and_pressure_of_the_last_hour_are_beside_the_owners(
    node: ServedNode, browser: Browser
) -> None:
    def values(earlier: float, later: float) -> Values:
        return (*((earlier,) * 30), *((later,) * 30))

    load = PastLoad(
        cpus=values(1.0, 3.0), memory_bytes=values(1 << 30, 1 << 30), cpu_pressure=values(0.0, 0.31)
    )
    pools = (PastPool("LS", 0, PastLoad(cpus=values(2.0, 5.0))),)
    waits = {
        "db": ("ns/db waited 310 ms of each second for CPUs 1: 310 ms batch/hog (BE)", "and more")
    }
    node.past = lambda: PastHour(
        time.time() - 3600, load, {0: load, 1: load}, pools, {"db": load}, waits
    )
    with served(node) as server, contextlib.closing(browser.tab()) as tab:
        tab.resize(1440, 900)
        tab.open(f"http://localhost:{server.port}/page#pod=ns/db")
        tab.until("document.querySelectorAll('#hour svg').length === 5", "machine and NUMA nodes")
        tab.until("document.querySelectorAll('#detail svg').length === 3", "the charts of the pod")
        row = "[...document.querySelectorAll('#pods tr')].find(each => each.dataset.key === 'db')"
        label = tab.run(f"{row}.querySelector('svg').getAttribute('aria-label')")
        assert label == "CPUs used by ns/db in the last hour: now 3.00, at most 3.00"
        assert "cpu 31 %" in tab.run(f"{row}.innerText")
        assert tab.run("document.querySelectorAll('#detail .change').length") == 3
        assert "Who disturbs it\nns/db waited 310 ms" in tab.run(
            "byId('detail-hour').innerText"
        ).replace("\n\n", "\n")
        assert "LS 5.0/" in tab.text("#pools")
        assert tab.violations() == []
        assert tab.errors == []


def test_without_samples_there_is_no_place_for_them(tab: Tab) -> None:
    shown = "[...document.querySelectorAll('[data-usage]')].filter(each => !each.hidden)"
    assert tab.run(f"{shown}.length") == 0


@pytest.mark.long
def test_512_cpus(browser: Browser, tmp_path: Path) -> None:
    node = ServedNode(tmp_path, LARGE)
    for number in range(24):
        node.pod(f"p{number}", "LSE", f"{number * 8}-{number * 8 + 3}")
    node.reconcile()
    with served(node) as server:
        tab = browser.tab()
        tab.open(f"http://localhost:{server.port}/page")
        tab.until("document.querySelectorAll('.cpu[data-cpu]').length === 512", "all CPUs")
        assert len(owned(tab)) == 96
        assert tab.violations() == []
        tab.close()
