"""The scheduler's page in a real browser, while the cluster changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.http.server import HttpServer
from tests.fixtures.browser import Browser, Tab
from tests.fixtures.browser import browser as browser
from tests.fixtures.fleet import Model, gpu_pod, owner
from tests.scheduler import clusters
from tests.scheduler.page_scene import HOLDER, TOO_LARGE, PageScene


@pytest.fixture
def scene() -> PageScene:
    scene = PageScene(60)
    assert clusters.reserve(scene.cluster, owner(3, 2), "node-00007", "broken")
    assert scene.place(owner(4, 2), "web")
    assert not scene.place(TOO_LARGE, "huge")
    return scene


@pytest.fixture
def server(scene: PageScene) -> Iterator[HttpServer]:
    it = scene.server()
    it.start()
    yield it
    it.close()


@pytest.fixture
def tab(browser: Browser, server: HttpServer) -> Iterator[Tab]:
    it = browser.tab()
    it.resize(1440, 900)
    it.open(f"http://localhost:{server.port}/page#holder={HOLDER}")
    it.until("document.querySelectorAll('#nodes tr').length === 25", "the nodes are drawn")
    it.until("document.getElementById('status').dataset.state === 'good'", "the page is live")
    yield it
    it.close()


def shown(tab: Tab) -> list[str]:
    found = tab.run("[...document.querySelectorAll('#nodes tr')].map(each => each.dataset.key)")
    return list(found)


def figure(tab: Tab, name: str) -> str:
    found = tab.run(f"document.querySelector('#figures [data-key=\"{name}\"] dd').textContent")
    return str(found)


def test_the_cluster_changes_while_the_page_is_open(scene: PageScene, tab: Tab) -> None:
    """Pods are scheduled or unschedulable, and a node takes no more pods. The page removes the
    holder of the Lease from its address."""
    assert HOLDER not in tab.run("location.href")
    assert "default/huge" in tab.text("#pods")
    assert "not enough" in tab.text("#pods")
    assert "default/web" in tab.text("#decisions")
    assert figure(tab, "nodes") == "60"
    assert scene.place(gpu_pod(2), "train")
    scene.bindings.error = "the API server does not answer"
    scene.place(owner(2, 2), "db")
    scene.queue.remove("uid-huge")
    scene.cluster.lock_node("node-00001", "its pods are moved")
    tab.until("document.getElementById('decisions').innerText.includes('default/db')")
    tab.until("document.getElementById('no-pods').hidden === false", "no pod is unschedulable")
    tab.until(
        "document.querySelector('#figures [data-key=\"take no pods\"] dd').textContent === '1'"
    )
    assert "the API server does not answer" in tab.text("#decisions")
    assert tab.violations() == []
    assert tab.errors == []


@pytest.mark.parametrize("width", [1440, 1024, 375])
def test_no_label_of_a_bar_overlaps_the_next(scene: PageScene, tab: Tab, width: int) -> None:
    """Nodes with hundreds of cores give a chart of many bars with long labels."""
    clusters.add_node(scene.cluster, "large", Model("large", (2, 1, 128, 2)))
    tab.resize(width, 900)
    tab.until("document.querySelector('[data-key=free_cores] [data-key=\"128\"]') !== null")
    overlaps = tab.run(
        """[...document.querySelectorAll('.bars')].flatMap(bars => {
          const labels = [...bars.querySelectorAll('button > span:nth-child(4)')].map(each => {
            const range = document.createRange();
            range.selectNodeContents(each);
            return [range.getBoundingClientRect(), each.textContent];
          });
          return labels.slice(1).map(([box, text], index) => [labels[index], box, text])
            .filter(([[before], box]) => box.left < before.right + 2 && box.top < before.bottom)
            .map(([[, one], , two]) => one + ' ' + two);
        })"""
    )
    assert overlaps == []
    assert not tab.run(
        "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    )


@pytest.mark.long
def test_charts_columns_search_and_paging_send_requests_to_the_server(tab: Tab) -> None:
    tab.click("[data-column=name] button")
    tab.until("document.querySelector('#nodes tr').dataset.key === 'node-00000'")
    assert (
        tab.run("document.querySelector('[data-column=name]').getAttribute('aria-sort')")
        == "ascending"
    )
    tab.click("#nodes-pager button:last-child")
    tab.until("document.querySelector('#nodes tr').dataset.key === 'node-00025'")
    tab.click("[data-key=free_gpus] [data-key='8']")
    tab.until("document.getElementById('nodes-title').textContent === 'Nodes: 12 of 60'")
    assert shown(tab)[0] == "node-00004"
    tab.click("#all-nodes")
    tab.until("document.getElementById('nodes-title').textContent === 'Nodes: 60'")
    tab.click("#search")
    tab.write("00007")
    tab.until("document.getElementById('nodes-title').textContent === 'Nodes: 1 of 60'")
    assert shown(tab) == ["node-00007"]
    assert tab.errors == []


@pytest.mark.long
def test_links_open_the_details_of_a_node_a_pod_and_a_decision(scene: PageScene, tab: Tab) -> None:
    tab.click("#pods a")
    tab.until("document.getElementById('detail-title')?.textContent === 'Pod default/huge'")
    tab.click("#why")
    tab.until("document.getElementById('detail').innerText.includes('No room on 60 nodes')")
    tab.click("#detail .lines a")
    tab.until("document.getElementById('detail-title')?.textContent.startsWith('Node node-')")
    tab.run("location.hash = '#node=node-00004'")
    tab.until("document.getElementById('detail').innerText.includes('GPU 7')")
    assert clusters.reserve(scene.cluster, gpu_pod(1), "node-00004", "late")
    tab.until("document.getElementById('detail').innerText.includes('default/late')")
    tab.click("#decisions a")
    tab.until("document.getElementById('detail-title')?.textContent === 'Pod default/web'")
    tab.until("document.getElementById('detail').innerText.includes('policies in force')")
    assert tab.violations() == []
    tab.press("Escape")
    tab.until("document.getElementById('detail').hidden")
    tab.run("location.hash = '#node=unknown'")
    tab.until("document.getElementById('detail').innerText.includes('does not know this node')")
    assert [each for each in tab.errors if "404" not in each] == []


@pytest.mark.long
def test_the_page_reports_that_the_scheduler_is_unavailable(scene: PageScene, tab: Tab) -> None:
    scene.unavailable = "the leader is another"
    tab.until("document.getElementById('stale')?.hidden === false")
    assert "503 the leader is another" in tab.text("#stale")
    scene.unavailable = None
    tab.until("document.getElementById('stale').hidden", "the page is live again")


@pytest.mark.long
def test_without_the_holder_of_the_lease_the_page_is_empty(
    browser: Browser, server: HttpServer
) -> None:
    tab = browser.tab()
    tab.open(f"http://localhost:{server.port}/page#holder=another")
    tab.until("document.getElementById('stale')?.hidden === false")
    assert "does not name the holder" in tab.text("#stale")
    assert not shown(tab)
    tab.close()


@pytest.mark.long
@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1440, True)])
def test_axe_finds_no_violations_on_a_phone_or_with_dark_colors(
    tab: Tab, width: int, dark: bool
) -> None:
    tab.resize(width, 844, dark=dark)
    tab.run("location.hash = '#node=node-00004'")
    tab.until("document.getElementById('detail').innerText.includes('GPU 7')")
    assert tab.violations() == []
    assert tab.run("document.documentElement.scrollWidth <= innerWidth"), (
        "the page does not scroll sideways"
    )


@pytest.mark.long
def test_markup_in_a_name_is_shown_as_text(scene: PageScene, tab: Tab) -> None:
    scene.cluster.lock_node("node-00000", "<img src=x onerror=alert(1)>")
    tab.click("[data-column=state] button")
    tab.click("[data-column=state] button")
    tab.until("document.getElementById('nodes').innerText.includes('<img src=x')")
    assert tab.run("document.querySelectorAll('#nodes img').length") == 0
