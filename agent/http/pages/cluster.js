/* The scheduler's page of the cluster. The server sorts, filters and cuts the tables: `view` is the
   body of the page's requests, `found` the last reply. */
const view = {search: '', kind: '', range: null, sort: 'free_cores', descending: true, offset: 0, pods_offset: 0};
let found = null, revision = '', shownDetail = '';

/* The holder of the leader's Lease. It is moved from the address to the storage of this tab, so that
   copied addresses do not contain it. */
const holder = (() => {
  const facts = Address.read(), key = 'topolet-lease-holder';
  try {
    if (facts.holder) sessionStorage.setItem(key, facts.holder);
  } catch { /* Storage is disabled: it stays in the address. */ return facts.holder || ''; }
  if (facts.holder) {
    delete facts.holder;
    history.replaceState(null, '', location.pathname + (Object.keys(facts).length ? Address.of(facts) : ''));
  }
  return sessionStorage.getItem(key) || '';
})();
const post = async (path, question) => {
  const reply = await fetch(path, {method: 'POST', cache: 'no-store', credentials: 'omit', signal: AbortSignal.timeout(8000),
    headers: {'Content-Type': 'application/json'}, body: JSON.stringify({lease_holder: holder, ...question})});
  if (reply.status === 404) return null;
  if (!reply.ok) throw new Error(`${reply.status} ${(await reply.text()).trim()}`);
  return reply.json();
};

byId('name').textContent = 'Scheduler';
byId('search').placeholder = 'Node, pod, GPU model or state';
document.title = 'Cluster \u2013 Topolet';

const nodesText = count => count === 1 ? 'node' : 'nodes';
const amount = value => String(Math.round(value * 10) / 10);
const NAMES = {free_cores: 'free whole cores', free_numa_nodes: 'NUMA nodes without an owner', free_gpus: 'free GPUs',
  lost_cpus: 'fragmented CPUs', lost_gpus: 'fragmented GPUs'};
const COLUMNS = [
  ['name', 'Node', 'The name of the node'], ['free_cores', 'Free cores', 'Cores all of whose CPUs a pod may still own'],
  ['free_numa_nodes', 'Free NUMA nodes', 'NUMA nodes none of whose CPUs has an owner'],
  ['free_gpus', 'Free GPUs', 'In sum, with parts of GPUs'],
  ['lost_cpus', 'Fragmented CPUs', 'Free CPUs on broken cores, and on rests of NUMA nodes that are too small for the pods of this cluster'],
  ['lost_gpus', 'Fragmented GPUs', 'What is left of shared GPUs and worth less than its size, and GPUs that stay idle because CPU or memory runs out first'],
  ['pods', 'Pods', 'Pods and reservations on the node'], ['state', 'State', 'Why the node takes no pods that need CPUs of their own']];
/* A failure is reported by the next call of `repeat`. */
const changeView = changes => { Object.assign(view, {offset: 0}, changes); askNow().catch(() => {}); };

/* The cluster: figures, and a chart for each measure. */
const drawFigures = () => {
  const all = found.totals;
  const facts = [['nodes', all.nodes], ['take no pods', all.closed], ['free whole cores', `${all.free_cores} of ${all.cores}`],
    ['NUMA nodes without an owner', `${all.free_numa_nodes} of ${all.numa_nodes}`],
    ...(all.gpus ? [['free GPUs', `${amount(all.free_gpus)} of ${all.gpus}`]] : []), ['fragmented CPUs', amount(all.lost_cpus)],
    ...(all.gpus ? [['fragmented GPUs', amount(all.lost_gpus)]] : []), ['pods without a node', found.waiting]];
  keep(byId('figures'), facts, fact => fact[0], fact => element('div', {}, element('dt', {text: fact[0]}), element('dd')),
    (child, fact) => { child.lastElementChild.textContent = fact[1]; });
  byId('reading').hidden = !found.reading;
  const text = 'The nodes are still being read, because requests of kube-scheduler have priority.';
  if (found.reading && byId('reading').textContent !== text) byId('reading').textContent = text;
};
const rangeText = (low, high) => high >= 1e9 ? `${low}+` : high - low <= 1 ? String(low) : `${low}\u2013${high - 1}`;
const nounOf = (column, low, high) => `${rangeText(low, high)} ${NAMES[column]}`;
const fillChart = (child, [column, bars]) => {
  const most = Math.max(...bars.map(bar => bar[2]), 1);
  keep(child.lastElementChild, bars, bar => bar[0],
    bar => element('button', {type: 'button', class: 'bar-button', onclick: () => pick(column, bar[0], bar[1])},
      element('b'), element('span', {class: 'hidden'}), element('i'), element('span'), element('span', {class: 'hidden', text: ` ${NAMES[column]}`})),
    (made, [low, high, count]) => {
      const chosen = Boolean(view.range) && view.range.column === column && view.range.low === low;
      const [number, nodes, bar, label] = made.children;
      number.textContent = count;
      nodes.textContent = ` ${nodesText(count)} with `;
      bar.style.setProperty('--part', String(count / most));
      label.textContent = low > 1 && low === bars[bars.length - 1][0] ? `${low}+` : rangeText(low, high);
      made.disabled = !count && !chosen;
      made.setAttribute('aria-pressed', String(chosen));
      made.title = `${count} ${nodesText(count)} with ${nounOf(column, low, high)}`;
    });
};
const pick = (column, low, high) => {
  const same = view.range && view.range.column === column && view.range.low === low;
  changeView({range: same ? null : {column, low, high}});
};
const drawCharts = () => {
  const charts = Object.entries(found.charts).filter(([column]) => found.totals.gpus || !column.endsWith('gpus'));
  keep(byId('charts'), charts, chart => chart[0], ([column]) => element('div', {class: 'chart', role: 'group', 'aria-label': `Nodes by ${NAMES[column]}`},
    element('h3', {text: `Nodes by ${NAMES[column]}`}), element('div', {class: 'bars'})), fillChart);
};

/* Nodes. */
for (const [column, text, help] of COLUMNS)
  byId('columns').append(element('th', {scope: 'col', 'data-column': column, class: /^(pods)$/.test(column) ? 'number' : null},
    element('button', {type: 'button', class: 'sort', title: help, text, onclick: () =>
      changeView({sort: column, descending: view.sort === column ? !view.descending : !/^(name|state)$/.test(column)})})));
const meter = part => element('span', {class: 'meter', 'aria-hidden': 'true'}, element('span', {'--part': String(part)}));
const share = (free, all) => all ? element('span', {class: 'of'}, amount(free), element('small', {text: ` of ${all}`}), meter(free / all)) : '\u2013';
const lost = value => value >= 0.05 ? element('span', {class: 'warned', text: amount(value)}) : '0';
const fillNode = (row, node) => {
  row.toggleAttribute('data-selected', Address.read().node === node.name);
  const text = JSON.stringify(node);
  if (row.dataset.text === text) return;
  row.dataset.text = text;
  const cells = [linkTo({node: node.name}, node.name), share(node.free_cores, node.cores), share(node.free_numa_nodes, node.numa_nodes),
    share(node.free_gpus, node.gpus), lost(node.lost_cpus), node.gpus ? lost(node.lost_gpus) : '\u2013', String(node.pods),
    node.state ? element('span', {class: 'tag warn', text: node.state}) : 'takes pods'];
  cells.forEach((cell, index) => row.children[index].replaceChildren(cell));
  if (node.model) row.firstElementChild.append(element('div', {class: 'empty', text: node.model}));
};
const pager = (place, first, shown, step, all, what, move) => {
  place.hidden = all <= shown && !first;
  if (!place.children.length) place.append(element('button', {type: 'button', text: 'Back'}), element('span'), element('button', {type: 'button', text: 'Next'}));
  const [back, text, next] = place.children;
  back.disabled = !first; next.disabled = first + shown >= all;
  back.onclick = () => move(Math.max(first - step, 0)); next.onclick = () => move(first + step);
  text.textContent = all ? `${first + 1}\u2013${first + shown} of ${all} ${what}` : '';
};
const drawNodes = () => {
  for (const head of byId('columns').children)
    head.setAttribute('aria-sort', head.dataset.column !== view.sort ? 'none' : view.descending ? 'descending' : 'ascending');
  byId('nodes-title').textContent = `Nodes: ${found.matching}${found.matching === found.totals.nodes ? '' : ` of ${found.totals.nodes}`}`;
  const range = view.range;
  byId('all-nodes').hidden = !range;
  const only = range ? `Only ${nounOf(range.column, range.low, range.high)}: show all` : '';
  if (byId('all-nodes').textContent !== only) byId('all-nodes').textContent = only;
  keep(byId('nodes'), found.nodes, node => node.name, () => element('tr', {}, ...COLUMNS.map(([column]) => element('td', {class: column === 'pods' ? 'number' : null}))), fillNode);
  byId('no-nodes').hidden = found.nodes.length > 0;
  pager(byId('nodes-pager'), view.offset, found.nodes.length, found.page, found.matching, 'nodes', offset => changeView({offset}));
};
byId('all-nodes').addEventListener('click', () => { changeView({range: null}); byId('kind').focus(); });
byId('kind').addEventListener('change', event => changeView({kind: event.target.value}));
let typing = 0;
Search.onchange = () => { clearTimeout(typing); typing = setTimeout(() => changeView({search: Search.text, pods_offset: 0}), 200); };

/* Pods without a node. */
const UNITS = {cpu: value => `${value / 1000} CPU`, memory: value => bytes(value)};
const requestText = requests => Object.entries(requests).map(([name, value]) =>
  UNITS[name] ? UNITS[name](value) : /memory$/.test(name) ? `${bytes(value)} ${name}` : `${name.replace(/^.*\//, '')} ${value}`).join(', ');
const reasonsOf = reasons => reasons.length ? element('ul', {class: 'reasons'}, ...reasons.map(([text, nodes]) =>
  element('li', {}, element('b', {text: `${nodes} ${nodesText(nodes)}: `}), text))) : element('span', {class: 'empty', text: 'kube-scheduler has not filtered nodes for it since this process became the leader'});
const fillPod = (row, pod) => {
  row.toggleAttribute('data-selected', Address.read().pod === pod.title);
  const text = JSON.stringify(pod);
  if (row.dataset.text === text) return;
  row.dataset.text = text;
  const cells = [linkTo({pod: pod.title}, pod.title), pod.class, requestText(pod.requests) || '\u2013', timeElement(pod.since), String(pod.priority), reasonsOf(pod.reasons)];
  cells.forEach((cell, index) => row.children[index].replaceChildren(cell));
  for (const [name, value] of [['group', pod.group], ['nominated', pod.nominated]])
    if (value) row.firstElementChild.append(element('div', {class: 'empty', text: `${name} ${value}`}));
};
const drawPods = () => {
  byId('pods-title').textContent = `Pods without a node: ${found.waiting}`;
  keep(byId('pods'), found.pods, pod => pod.uid, () => element('tr', {}, ...[0, 1, 2, 3, 4, 5].map(index => element('td', {class: index === 4 ? 'number' : null}))), fillPod);
  byId('no-pods').hidden = found.pods.length > 0;
  byId('no-pods').textContent = view.search ? 'No pod matches.' : 'Every pod for which kube-scheduler filtered nodes has a node.';
  pager(byId('pods-pager'), view.pods_offset, found.pods.length, found.pods_page, found.waiting, 'pods', offset => { view.pods_offset = offset; askNow().catch(() => {}); });
};

/* Decisions. */
const devicesText = devices => Object.entries(devices).map(([kind, minors]) => `${kind} ${minors.join(',')}`).join(', ');
const gotText = each => each.error || [each.cpus && `CPUs ${each.cpus}`, each.numa_nodes.length && `NUMA nodes ${each.numa_nodes.join(',')}`,
  devicesText(each.devices), each.score === null ? '' : `score ${each.score}`].filter(Boolean).join(' \u00b7 ');
const decisionItem = each => element('li', {}, timeElement(each.time),
  each.error ? element('span', {class: 'tag bad', text: 'not bound'}) : '',
  linkTo({decision: each.number}, each.title), ' \u2192 ', linkTo({node: each.node}, each.node), element('div', {class: 'empty', text: gotText(each)}));
const drawDecisions = () => {
  keep(byId('decisions'), found.decisions, each => each.number, decisionItem);
  byId('no-decisions').hidden = found.decisions.length > 0;
  byId('no-decisions').textContent = view.search ? 'No decision matches.' : 'This process has placed no pod yet.';
};

/* The details of the selected node, pod or decision. */
const row = (name, free, all, text) => element('div', {class: 'row'}, element('span', {text: name}), meter(all ? free / all : 0), element('span', {text}));
const holdingRow = pod => element('tr', {}, element('td', {}, linkTo({pod: pod.title}, pod.title), pod.reservation ? ' (reservation)' : ''),
  element('td', {}, element('code', {text: pod.cpus || '\u2013'})), element('td', {text: devicesText(pod.devices) || '\u2013'}));
const showNode = answer => {
  const node = answer.node;
  const more = [];
  if (answer.numa_nodes.length) more.push(element('h3', {text: 'CPUs without an owner'}), element('div', {class: 'halves'},
    ...answer.numa_nodes.map(each => row(`NUMA node ${each.id}`, each.free_cpus, each.cpus, `${each.free_cpus} of ${each.cpus}`))));
  if (answer.gpus.length) more.push(element('h3', {text: 'Free parts of GPUs'}), element('div', {class: 'halves'},
    ...answer.gpus.map(each => row(`GPU ${each.minor}`, each.free, 1, `${Math.round(each.free * 100)} %`))));
  if (answer.pods.length) more.push(element('h3', {text: `Pods with CPUs or devices of their own: ${answer.holding}`}),
    element('div', {class: 'scroll', tabindex: '0', role: 'group', 'aria-label': 'Pods of the node'}, element('table', {},
      element('thead', {}, element('tr', {}, ...['Pod', 'CPUs', 'Devices'].map(text => element('th', {scope: 'col', text})))),
      element('tbody', {}, ...answer.pods.map(holdingRow)))));
  Detail.show(`node ${node.name}`, `Node ${node.name}`, [
    ['State', node.state || 'takes pods'], ['GPU model', node.model], ['Free cores', `${node.free_cores} of ${node.cores}`],
    ['Free CPUs', `${node.free_cpus} of ${node.cpus}`], ['NUMA nodes', `${node.free_numa_nodes} of ${node.numa_nodes} without an owner`],
    ['Free GPUs', node.gpus ? `${amount(node.free_gpus)} of ${node.gpus}` : ''],
    ['Broken cores', node.cpus_on_broken_cores ? `${node.cpus_on_broken_cores} free CPUs are on cores that have an owner too` : ''],
    ['Small rests', node.cpus_on_small_rests ? `${amount(node.cpus_on_small_rests)} CPUs (mean) are on rests of NUMA nodes that are too small for pods of this cluster` : ''],
    ['Fragmented GPUs', node.lost_gpus ? amount(node.lost_gpus) : ''], ['Pods', String(node.pods)]], more, {node: node.name});
};
const showWaiting = answer => {
  const pod = answer.pod, explained = answer.explanation;
  const more = [];
  if (explained) {
    more.push(element('h3', {text: 'Why no node has room'}), element('p', {}, explained.winner ? `Node ${explained.winner} has room now.` : explained.note));
    if (explained.causes.length) more.push(element('ul', {class: 'lines'}, ...explained.causes.map(each => element('li', {},
      element('b', {text: `${each.nodes} ${nodesText(each.nodes)}: `}), `${each.summary}. For example `, linkTo({node: each.example}, each.example), `: ${each.message}.`))));
    if (explained.left_out) more.push(element('p', {class: 'empty', text: `${explained.left_out} nodes were not checked.`}));
    more.push(element('p', {class: 'empty'}, 'As of ', timeElement(explained.time), '.'));
  }
  const why = element('button', {type: 'button', id: 'why', text: explained ? 'Explain again' : 'Explain', onclick: () => explain(pod.title)});
  Detail.show(`pod ${pod.title}`, `Pod ${pod.title}`, [
    ['State', 'has no node'], ['Waits since', timeElement(pod.since)], ['Class', pod.class], ['Requests', requestText(pod.requests)],
    ['Priority', String(pod.priority)], ['Group', pod.group], ['Nominated', pod.nominated], ['Last rejection', reasonsOf(pod.reasons)],
    ['UID', element('code', {text: pod.uid})]], [element('div', {class: 'buttons'}, why), ...more], {pod: pod.title});
};
const explain = async title => {
  byId('why').disabled = true;
  byId('why').textContent = 'Explaining';
  try {
    const answer = await post('/page/detail', {pod: title, explain: true});
    if (answer && answer.pod && Address.read().pod === title) { shownDetail = JSON.stringify(answer); showWaiting(answer); byId('why').focus(); }
  } catch (error) {
    byId('why').disabled = false;
    byId('why').textContent = `Explain again: ${error.message}`;
  }
};
const showDecision = answer => {
  const each = answer.decision;
  Detail.show(`decision ${each.number}`, `Pod ${each.title}`, [
    ['Result', each.error ? element('span', {class: 'tag bad', text: 'not bound'}) : 'bound'], ['Why not', each.error], ['Node', linkTo({node: each.node}, each.node)], ['Time', timeElement(each.time)],
    ['Class', each.class], ['Requests', requestText(answer.requests)], ['CPUs', each.cpus ? element('code', {text: each.cpus}) : ''],
    ['NUMA nodes', each.numa_nodes.join(', ')], ['Devices', devicesText(each.devices)], ['Score', each.score === null ? '' : String(each.score)]],
  answer.lines.length ? [element('h3', {text: 'How CPUs and NUMA nodes were chosen'}), element('ul', {class: 'lines'}, ...answer.lines.map(text => element('li', {text})))] : [],
  {decision: each.number});
};
const drawSelected = async () => {
  const {node, pod, decision} = Address.read();
  if (!node && !pod && !decision) { shownDetail = ''; Detail.hide(); return; }
  const hash = location.hash;
  const answer = await post('/page/detail', node ? {node} : decision ? {decision: Number(decision) || 0} : {pod});
  if (location.hash !== hash) return;
  const text = hash + JSON.stringify(answer);
  if (text === shownDetail) return;
  const explained = answer && answer.pod && shownDetail.includes('"explanation":') && Detail.key === `pod ${pod}`;
  if (explained) return;
  shownDetail = text;
  const what = node ? `Node ${node}` : pod ? `Pod ${pod}` : `Decision ${decision}`;
  if (!answer) Detail.show(what, what, [['State', node ? 'The scheduler does not know this node.' : 'The pod does not wait for a node, and is not among the last decisions.']]);
  else if (answer.node) showNode(answer);
  else if (answer.pod) showWaiting(answer);
  else showDecision(answer);
};
const select = () => {
  if (!found) return;
  for (const made of byId('nodes').children) made.toggleAttribute('data-selected', made.dataset.key === Address.read().node);
  for (const made of byId('pods').children) made.toggleAttribute('data-selected', made.querySelector('a').textContent === Address.read().pod);
  drawSelected().catch(error => Detail.show('error', 'No answer', [['Reason', error.message]]));
};
Address.onchange(select);

const draw = answer => {
  if (!answer.same) {
    found = answer;
    revision = answer.revision;
    drawFigures(); drawCharts(); drawNodes(); drawPods(); drawDecisions();
    byId('foot').textContent = `Topolet, as the leading scheduler sees the cluster. This page changes nothing. Times are in ${TIME_ZONE}.`;
  }
  Status.good(answer.time);
};
let asking = 0;
const askNow = async () => {
  const turn = asking += 1;
  do {
    const query = JSON.stringify(view);
    const answer = await post('/page/state', {...view, revision: query === askNow.query ? revision : ''});
    if (turn !== asking) return;
    askNow.query = query;
    const drawn = performance.now();
    draw(answer);
    performance.measure('topolet-frame', {start: drawn, end: performance.now()});
    performance.clearMeasures();
  } while (found.reading && !Pause.paused && !document.hidden);
  await drawSelected();
};
repeat(2, () => 'The scheduler', async () => {
  await askNow();
});
