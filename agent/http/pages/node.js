/* The agent's page of its node: the last replies are `node` of `/page/state`, `past` of
   `/page/history`, `now` of `/page/load`, and `hour` of `/page/usage`: null if none is sampled. */
let hour = null;
let node = null, past = {since: {}, pools: [], changes: [], drift: [], begin: ''}, now = null;
let cells = new Map(), ownerOf = new Map(), podsByTitle = new Map(), podsByUid = new Map(), devicesByAddress = new Map(), order = [];
const hues = new Map();

byId('search').placeholder = 'Pod, CPUs such as 4-7, device';
byId('pods').parentElement.setAttribute('aria-label', 'Pods of the node');

const hueOf = uid => {
  if (!hues.has(uid)) hues.set(uid, (250 + hues.size * 137.508) % 360);
  return hues.get(uid);
};
const share = list => list.length ? list.reduce((sum, each) => sum + each, 0) / list.length : null;
const loadOf = cpu => { const value = now && now.loads.get(cpu); return value === undefined || value === 255 ? null : value; };
const percent = value => value === null || value === undefined ? '\u2013' : `${Math.round(value)} %`;
const poolsOf = cpu => node.pools.filter(pool => pool.set.has(cpu)).map(pool => pool.kind);
const nameOf = device => `${{gpu: 'GPU', nic: 'NIC', fpga: 'FPGA'}[device.kind] || device.kind}${device.index === null || device.index === undefined ? '' : ' ' + device.index}`;

/* The machine. */
const cell = cpu => element('button', {type: 'button', class: 'cpu', tabindex: '-1', 'data-cpu': cpu.id,
  'data-address': `#cpu=${cpu.id}`, 'aria-pressed': 'false'}, element('i'), String(cpu.id));
const core = cpus => element('span', {class: 'core', 'data-kind': cpus[0].kind && node.kinds > 1 ? cpus[0].kind : null,
  title: node.kinds > 1 ? `core of kind ${cpus[0].kind || 'unknown'}` : null},
  ...cpus.map(cpu => { const made = cell(cpu); cells.set(cpu.id, made); order.push(cpu.id); return made; }));
const coresOf = list => {
  const cores = new Map();
  for (const id of numbers(list)) {
    const cpu = node.byCpu.get(id);
    if (!cores.has(cpu.core)) cores.set(cpu.core, []);
    cores.get(cpu.core).push(cpu);
  }
  return element('div', {class: 'cores', '--threads': String(Math.max(...[...cores.values()].map(each => each.length)))}, ...[...cores.values()].map(core));
};
const partOf = (part, level) => {
  const inner = part.parts || [];
  if (!inner.length && level > 1 && part.noun === 'cache group')
    return element('div', {class: 'cache'}, element('h4', {text: part.title}), coresOf(part.cpus));
  const groups = inner.length ? inner.map(each => partOf(each, level + 1)) : [coresOf(part.cpus)];
  const caches = inner.length && inner.every(each => !(each.parts || []).length && each.noun === 'cache group');
  return element('div', {class: 'part', role: 'group', 'aria-label': part.title},
    element('h3', {text: part.title}),
    ...(part.notes || []).map(note => element('p', {class: 'note', text: note})),
    element('div', {class: caches || !inner.length ? '' : 'parts'}, ...groups),
    part.node === undefined || part.node === null ? null : element('div', {'data-devices': part.node}));
};
const drawMachine = () => {
  cells = new Map(); order = [];
  byId('picture').replaceChildren(
    element('div', {class: 'parts'}, ...node.parts.map(part => partOf(part, 1))),
    element('div', {'data-devices': 'other'}));
  if (order.length) cells.get(order[0]).tabIndex = 0;
};
const drawFigures = () => {
  const owned = ownerOf.size;
  const cores = new Map();
  for (const cpu of node.cpus) cores.set(cpu.core, cores.get(cpu.core) || ownerOf.has(cpu.id));
  const busy = now ? [...now.loads.values()].filter(value => value !== 255) : [];
  const facts = [
    ['CPUs', node.cpus.length], ['cores', cores.size], ['NUMA nodes', new Set(node.cpus.map(cpu => cpu.node)).size],
    ['memory', node.memory_bytes ? bytes(node.memory_bytes) : '\u2013'], ['owned CPUs', owned],
    ['cores without owner', [...cores.values()].filter(each => !each).length], ['pods', node.pods.length],
    ['load', percent(share(busy))]];
  keep(byId('figures'), facts, fact => fact[0], fact => element('div', {}, element('dt', {text: fact[0]}), element('dd')),
    (child, fact) => { const place = child.lastElementChild; if (place.textContent !== String(fact[1])) place.textContent = fact[1]; });
};
const drawHardware = () => keep(byId('hardware'), node.hardware, text => text, text => element('li', {text}));
const paintCells = () => {
  for (const [id, made] of cells) {
    const pod = ownerOf.get(id), pools = poolsOf(id);
    const name = ['cpu', pod ? 'owned' : '', pod && pools.includes('BE') ? 'be' : '',
      !pod && pools.length === 1 && pools[0] === 'BE' ? 'only-be' : '', !pod && !pools.some(kind => node.pool_kinds.includes(kind)) ? 'none' : ''].filter(Boolean).join(' ');
    const key = `${name} ${pod ? pod.uid : ''} ${pools}`;
    if (made.owner === key) continue;
    made.owner = key;
    made.className = name;
    made.style.setProperty('--hue', pod ? hueOf(pod.uid) : '');
    const text = pod ? `owned by pod ${pod.title}, class ${pod.qos}` : pools.length ? `${pools.join(' and ')} pool` : 'in no pool';
    made.setAttribute('aria-label', `CPU ${id}, ${text}`);
    made.title = `CPU ${id}: ${text}`;
  }
};
const paintLoads = () => {
  for (const [id, made] of cells) {
    const value = String(loadOf(id) ?? 0);
    if (made.load !== value) { made.load = value; made.firstElementChild.style.transform = `scaleY(${value / 100})`; }
  }
};

/* Devices, by NUMA node and switch. */
const placeOf = device => {
  const switches = device.bridges.filter((_, index) => index % 2);
  return switches.length ? `PCIe switch ${switches[0]}` : device.root ? `PCIe root ${device.root}` : 'no PCIe tree';
};
const deviceCard = device => element('button', {type: 'button', class: 'device', 'data-device': device.address, 'data-address': `#device=${device.address}`});
const fillDevice = (made, device) => {
  const used = now && now.devices[device.address];
  const text = JSON.stringify([device, used, holdersOf(device).map(title => podsByTitle.has(title))]);
  if (made.text === text) return;
  made.text = text;
  made.classList.toggle('unhealthy', device.healthy === false);
  const health = device.healthy === null || device.healthy === undefined ? null
    : element('span', {class: device.healthy ? 'good' : 'bad', text: device.healthy ? 'healthy' : 'unhealthy'});
  const memory = device.memory_bytes ? `${used && used.memory_used_bytes !== null ? bytes(used.memory_used_bytes) + ' of ' : ''}${bytes(device.memory_bytes)}` : '';
  const facts = [used && used.percent !== null ? `${used.percent} %` : '', memory].filter(Boolean).join(' \u00b7 ');
  made.replaceChildren(
    element('span', {class: 'head'}, element('b', {text: nameOf(device)}), health),
    element('span', {class: 'soft', text: device.name}),
    facts ? element('span', {text: facts}) : '',
    device.state && device.healthy !== false ? element('span', {class: 'soft', text: device.state}) : '',
    device.parts.length ? element('span', {class: 'soft', text: `${device.parts.length} MIG instances`}) : '',
    ...holdersOf(device).map(title => element('span', {}, swatch(title), title)),
    used && used.percent !== null ? element('span', {class: 'use', '--use': String(used.percent / 100), 'aria-hidden': 'true'}) : '');
};
const holdersOf = device => [...new Set([...device.holders, ...device.parts.flatMap(part => part.holders)])];
const swatch = title => {
  const pod = podsByTitle.get(title);
  return element('span', {class: pod && pod.own ? 'swatch own' : 'swatch', '--hue': pod && pod.own ? String(hueOf(pod.uid)) : null, 'aria-hidden': 'true'});
};
const drawDevices = () => {
  const places = new Map([...document.querySelectorAll('[data-devices]')].map(each => [each.dataset.devices, each]));
  for (const [name, place] of places) {
    const near = node.devices.filter(each => places.has(String(each.node)) ? String(each.node) === name : name === 'other');
    const groups = [...new Set(near.map(placeOf))];
    keep(place, groups, group => group,
      group => element('div', {class: 'switch'}, element('h4', {text: group}), element('div', {class: 'devices'})),
      (made, group) => keep(made.lastElementChild, near.filter(each => placeOf(each) === group), each => each.address, deviceCard, fillDevice));
  }
};

/* Pods. */
const podRow = () => element('tr', {}, element('td'), element('td'), element('td'), element('td'), element('td', {class: 'number'}),
  element('td', {'data-usage': true}), element('td', {class: 'waits', 'data-usage': true}), element('td'), element('td'));
const short = (list, count) => list.length > 44 ? `${count} CPUs: ${list.slice(0, 36).replace(/[^,]*$/, '')}\u2026` : list;
const podLoad = pod => share(numbers(pod.own).map(loadOf).filter(value => value !== null));
const stateOf = pod => pod.refused ? element('span', {class: 'tag bad', text: 'claim refused'})
  : pod.waits ? element('span', {class: 'tag warn', text: 'containers wait'}) : pod.state;
const fillPod = (row, pod) => {
  const text = JSON.stringify([pod, past.since[pod.uid]]);
  if (row.text === text) return;
  row.text = text;
  const [name, qos, cpus, nodes, , , , state, since] = row.children;
  name.replaceChildren(swatch(pod.title), linkTo({pod: pod.title}, pod.title));
  qos.textContent = pod.qos;
  cpus.replaceChildren(element('code', {text: short(pod.cpus, countOf(pod.cpus)) || '\u2013', title: pod.cpus}));
  nodes.textContent = pod.nodes || '\u2013';
  state.replaceChildren(stateOf(pod));
  since.replaceChildren(past.since[pod.uid] ? timeElement(past.since[pod.uid]) : '\u2013');
};
const paintPods = () => {
  for (const row of byId('pods').children) {
    const pod = podsByUid.get(row.dataset.key);
    const load = pod && pod.own ? percent(podLoad(pod)) : '\u2013';
    if (row.load !== load) row.children[4].textContent = row.load = load;
    if (row.hour === hour) continue;
    row.hour = hour;
    const [ofHour, waits] = row.querySelectorAll('[data-usage]');
    const ofPod = pod && loadOfPod(pod);
    ofHour.hidden = waits.hidden = !hour;
    ofHour.replaceChildren(ofPod && newest(ofPod.cpus) !== null ? chartOf(`CPUs used by ${pod.title}`, ofPod.cpus, twoDigits, countOf(pod.own)) : '');
    waits.replaceChildren(ofPod ? waitOf(ofPod) : '');
  }
};
const drawPods = () => {
  byId('pods-title').textContent = `Pods: ${node.pods.length}`;
  const shown = node.pods.filter(matches);
  keep(byId('pods'), shown, pod => pod.uid, podRow, fillPod);
  paintPods();
  byId('no-pods').hidden = shown.length > 0;
  byId('no-pods').textContent = node.pods.length ? `No pod matches \u201c${Search.text}\u201d.` : 'The agent sees no pods.';
};

/* The last hour: a mean for each minute. */
const QUANTITIES = [['CPUs used', 'cpus', value => twoDigits(value)], ['Memory', 'memory_bytes', value => bytes(value)],
  ['Waits for CPU', 'cpu_pressure', value => part(value)], ['Waits for memory', 'memory_pressure', value => part(value)],
  ['Waits for I/O', 'io_pressure', value => part(value)],
  ['CPUs that its quota took', 'throttled_cpus', value => twoDigits(value)]];
const LEAST = 0.1, SHOWN_WAIT = 0.2;
const twoDigits = value => value.toFixed(2);
const part = value => `${Math.round(100 * value)} %`;
const newest = values => { for (const value of [...values || []].reverse()) if (value !== null) return value; return null; };
const highest = values => Math.max(...values.filter(value => value !== null));
const loadOfPod = pod => hour && hour.pods[pod.uid] || null;
const waitOf = load => {
  const [amount, cause] = [['cpu', load.cpu_pressure], ['memory', load.memory_pressure], ['io', load.io_pressure], ['quota', load.throttled_cpus]]
    .map(([name, values]) => [newest(values), name]).filter(each => each[0] !== null).sort((one, other) => other[0] - one[0])[0] || [null];
  if (amount === null) return '\u2013';
  return element('span', {class: amount < SHOWN_WAIT ? '' : 'tag warn', text: `${cause} ${cause === 'quota' ? twoDigits(amount) : part(amount)}`});
};
/* The paths of the line and of the area below it; a minute without samples is a gap. */
const pathsOf = (values, most) => {
  const x = index => (300 * (index + .5) / values.length).toFixed(1), y = value => (40 - 36 * Math.min(value / most, 1)).toFixed(1);
  let line = '', area = '', first = null;
  values.forEach((value, index) => {
    if (value === null) return;
    if (first === null) { first = index; line += `M${x(index)} ${y(value)}`; area += `M${x(index)} 40V${y(value)}`; }
    else { line += `L${x(index)} ${y(value)}`; area += `L${x(index)} ${y(value)}`; }
    if (index + 1 === values.length || values[index + 1] === null) { line += 'h.1'; area += 'V40Z'; first = null; }
  });
  return [line, area];
};
/* `most`: the value at the top; 0 for the highest one. `changes`: times that are marked. */
const chartOf = (name, values, write, most, changes = []) => {
  const peak = highest(values), [line, area] = pathsOf(values, most || Math.max(peak, LEAST));
  const places = changes.map(time => 300 * (time - 1000 * hour.begin) / 3600e3).filter(place => place >= 0 && place <= 300);
  const marked = places.length ? `; ${places.length} changes of its CPUs` : '';
  return svg('svg', {viewBox: '0 0 300 44', preserveAspectRatio: 'none', role: 'img',
    'aria-label': `${name} in the last hour: now ${write(newest(values))}, at most ${write(peak)}${marked}`},
  svg('path', {class: 'used', d: area}), svg('path', {d: line}),
  ...places.map(place => svg('path', {class: 'change', d: `M${place.toFixed(1)} 0V44`})));
};
const titledChart = (name, text, of, values, write, most, changes) => element('div', {class: 'pool'},
  element('p', {}, element('b', {text: name}), element('span', {text})), chartOf(`${name}, ${of}`, values, write, most, changes));
const chartsOf = (load, of, tops, changes) => QUANTITIES.filter(([, quantity]) => load && newest(load[quantity]) !== null)
  .map(([name, quantity, write]) => titledChart(name, `${write(newest(load[quantity]))}, most ${write(highest(load[quantity]))}`, of, load[quantity], write, tops[quantity] || 0, changes));
const drawHour = () => {
  for (const made of document.querySelectorAll('[data-usage]:not(td)')) made.hidden = !hour;
  if (!hour) return;
  const of = id => node.cpus.filter(cpu => cpu.node === id).length;
  const nodes = Object.entries(hour.numa_nodes).filter(([, load]) => newest(load.cpus) !== null);
  byId('hour').replaceChildren(
    ...chartsOf(hour.machine, 'of the machine', {cpus: node.cpus.length, memory_bytes: node.memory_bytes}),
    ...nodes.length < 2 ? [] : nodes.map(([id, load]) => titledChart(`NUMA node ${id}`,
      `${twoDigits(newest(load.cpus))} of ${of(Number(id))} CPUs${newest(load.memory_bytes) === null ? '' : `, ${bytes(newest(load.memory_bytes))}`}`,
      'CPUs used', load.cpus, twoDigits, of(Number(id)))));
};

/* Search: a CPU list, or a part of a pod's or device's text. */
let wanted = null, searched = false;
const matches = pod => {
  if (!Search.text) return true;
  if (wanted) return numbers(pod.cpus).some(cpu => wanted.has(cpu));
  return `${pod.title} ${pod.qos} ${pod.uid} ${pod.state}`.toLowerCase().includes(Search.text);
};
const drawSearch = () => {
  wanted = /^\d+(-\d+)?(,\d+(-\d+)?)*$/.test(Search.text) && Search.text.length < 2000
    && Search.text.split(/[,-]/).every(each => Number(each) < 8192) ? new Set(numbers(Search.text)) : null;
  drawPods();
  if (!Search.text && !searched) return;
  searched = Boolean(Search.text);
  const own = new Set(node.pods.filter(matches).flatMap(pod => numbers(pod.own)));
  for (const [id, made] of cells) made.classList.toggle('dim', Boolean(Search.text) && !(wanted ? wanted.has(id) : own.has(id)));
  for (const made of document.querySelectorAll('.device')) {
    const device = devicesByAddress.get(made.dataset.device);
    const text = device ? `${nameOf(device)} ${device.address} ${device.name} ${device.id} ${device.state} ${holdersOf(device).join(' ')}`.toLowerCase() : '';
    made.classList.toggle('dim', Boolean(Search.text) && !text.includes(Search.text));
  }
};
Search.onchange = () => { if (node) drawSearch(); };

/* What needs attention: the agent's findings, and the drift of the last hour. */
const subjectOf = each => each.pod ? linkTo({pod: each.pod}, each.pod)
  : each.device ? linkTo({device: each.device}, devicesByAddress.has(each.device) ? `${nameOf(devicesByAddress.get(each.device))} ${each.device}` : each.device) : null;
const drawAttention = () => {
  const found = [...(now && now.problem ? [{kind: 'Agent not ready', text: now.problem}] : []), ...node.attention, ...past.drift];
  byId('attention').hidden = !found.length;
  keep(byId('attention-list'), found, each => JSON.stringify(each), each => element('li', {},
    element('span', {class: /Drift|wait/.test(each.kind) ? 'tag warn' : 'tag bad', text: each.kind}),
    element('span', {}, subjectOf(each), subjectOf(each) ? ': ' : '', each.text, each.time ? ' \u2013 ' : '', each.time ? timeElement(each.time) : '')));
};

/* The pools of the last hour, as steps. */
const svg = (tag, attributes, ...children) => {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};
const sizesOf = (kind, id) => {
  const present = node.pools.filter(pool => pool.kind === kind && pool.node === id).reduce((sum, pool) => sum + pool.set.size, 0);
  const begin = Date.parse(past.begin) || Date.now() - 3600e3, end = now ? Date.parse(now.time) : Date.now();
  const steps = past.pools.filter(each => each.kind === kind && each.node === id).map(each => [Math.max(Date.parse(each.time), begin), each.cpus]);
  return {present, steps: [...(steps.length ? steps : [[begin, present]]), [end, present]], begin, end};
};
const pathOf = ({steps, begin, end}, most) => {
  const x = time => (300 * Math.min(Math.max((time - begin) / Math.max(end - begin, 1), 0), 1)).toFixed(1);
  const y = size => (40 - 36 * size / Math.max(most, 1)).toFixed(1);
  return steps.map(([time, size], index) => index ? `H${x(time)}V${y(size)}` : `M${x(time)} ${y(size)}`).join('');
};
const drawPools = () => {
  const ids = [...new Set(node.pools.map(pool => pool.node))].sort((one, other) => one - other);
  byId('no-pools').hidden = ids.length > 0;
  keep(byId('pools'), ids, id => id, id => element('div', {class: 'pool'},
    element('p', {}, element('b', {text: `NUMA node ${id}`}), element('span')),
    svg('svg', {viewBox: '0 0 300 44', preserveAspectRatio: 'none', role: 'img'},
      ...node.pool_kinds.map(kind => svg('path', {class: `${kind.toLowerCase()} used`})), ...node.pool_kinds.map(kind => svg('path', {class: kind.toLowerCase()}))),
    element('p', {class: 'ends'}, element('span'), element('span', {text: 'now'}))),
  (made, id) => {
    const sizes = node.pool_kinds.map(kind => ({kind, ...sizesOf(kind, id)})), steps = sizes.flatMap(each => each.steps);
    const most = Math.max(...steps.map(step => step[1]), 1);
    const used = sizes.map(({kind}) => hour && (hour.pools.find(pool => pool.kind === kind && pool.node === id) || {load: {}}).load.cpus || []);
    const usedNow = (index, of) => newest(used[index]) === null ? '' : `${newest(used[index]).toFixed(1)}${of}`;
    made.firstElementChild.lastElementChild.textContent = `${sizes.map((each, index) => `${each.kind} ${usedNow(index, '/')}${each.present}`).join(' \u00b7 ')} CPUs`;
    made.querySelectorAll('path:not(.used)').forEach((path, index) => path.setAttribute('d', pathOf(sizes[index], most)));
    made.querySelectorAll('.used').forEach((path, index) => path.setAttribute('d', pathsOf(used[index], most)[1]));
    const texts = sizes.map((each, index) => `${each.kind} pool ${each.steps[0][1]}, now ${usedNow(index, ' in use of ')}${each.present} CPUs`);
    made.querySelector('svg').setAttribute('aria-label', `NUMA node ${id}: ${texts.join('; ')}; ${Math.max(steps.length - 2 * sizes.length, 0)} changes`);
    made.querySelector('.ends span').textContent = timed(new Date(sizes[0].begin).toISOString());
  });
};

const eventItem = each => element('li', {}, timeElement(each.time),
  each.kind === 'decision' ? '' : element('span', {class: each.kind === 'move' ? 'tag' : 'tag warn', text: each.kind}),
  each.pod ? linkTo({pod: each.pod}, each.pod) : '', each.pod ? ': ' : '', each.text);
const drawChanges = () => {
  const shown = past.changes.filter(each => byId('moves').checked || each.kind !== 'move').slice(0, 60);
  keep(byId('changes'), shown, each => `${each.time} ${each.uid} ${each.text}`, eventItem);
  byId('no-changes').hidden = shown.length > 0;
};
byId('moves').addEventListener('change', drawChanges);
const hourOf = pod => {
  const moves = past.changes.filter(each => each.pod === pod.title && each.kind === 'move').map(each => Date.parse(each.time));
  const made = chartsOf(loadOfPod(pod), `of ${pod.title}`, {cpus: countOf(pod.own)}, moves);
  const disturbed = hour && hour.disturbed[pod.uid];
  return [
    ...disturbed ? [element('h3', {text: 'Who disturbs it'}), ...disturbed.map(text => element('p', {text}))] : [],
    ...made.length ? [element('h3', {text: 'Load and pressure in the last hour'}), ...made] : [],
  ];
};
const storyOf = title => {
  const found = past.changes.filter(each => each.pod === title).slice(0, 25);
  return found.length ? [element('h3', {text: 'In the last day'}), element('ol', {class: 'events'}, ...found.map(each => element('li', {}, timeElement(each.time), each.text)))] : [];
};

/* The details of the selected pod, CPU or device. */
const devicesOf = title => node.devices.filter(each => holdersOf(each).includes(title));
const listOf = parts => parts.length ? element('span', {}, ...parts.flatMap((part, index) => index ? [', ', part] : [part])) : '';
const mono = text => text ? element('code', {text}) : '';
const sinceOf = pod => past.since[pod.uid] ? timeElement(past.since[pod.uid]) : 'before the oldest record of the audit trail';
const showPod = title => {
  const pod = podsByTitle.get(title);
  if (!pod) return Detail.show(`pod ${title}`, `Pod ${title}`, [['State', 'The agent does not see this pod.']], storyOf(title));
  return Detail.show(`pod ${title}`, `Pod ${title}`, [
    ['Class', pod.qos], ['CPUs', mono(pod.cpus)], ['NUMA nodes', pod.nodes], ['State', pod.state], ['Reason', pod.reason],
    ['Since', sinceOf(pod)], ['Load', pod.own ? element('span', {id: 'detail-load', text: percent(podLoad(pod))}) : ''],
    ['Not honoured', pod.refused], ['Waits', pod.waits], ['Offline CPUs', pod.offline],
    ...(pod.containers || []).map(each => [`Container ${each.name}`, element('span', {}, mono(each.cpus), each.cpus ? ' ' : '', each.state)]),
    ['Devices', listOf(devicesOf(title).map(each => linkTo({device: each.address}, `${nameOf(each)} ${each.address}`)))],
    ['UID', mono(pod.uid)]], [element('div', {id: 'detail-hour'}, ...hourOf(pod)), ...storyOf(title)], {pod: title, node: node.node});
};
const showCpu = id => {
  const cpu = node.byCpu.get(id), pod = ownerOf.get(id);
  if (!cpu) return Detail.show(`cpu ${id}`, `CPU ${id}`, [['State', new Set(numbers(node.offline)).has(id) ? 'offline' : 'This machine has no such CPU.']]);
  const siblings = node.cpus.filter(each => each.core === cpu.core && each.id !== id).map(each => each.id);
  const cache = cpu.l3 === undefined || cpu.l3 === null ? [] : node.cpus.filter(each => each.l3 === cpu.l3).map(each => each.id);
  const pools = poolsOf(id);
  const isolated = new Set(numbers(node.isolated)).has(id);
  return Detail.show(`cpu ${id}`, `CPU ${id}`, [
    ['Owner', pod ? linkTo({pod: pod.title}, pod.title) : 'none'], ['Class', pod && pod.qos],
    ['Reason', pod ? pod.reason : pools.length ? 'no pod owns it: pods of the pool share it' : isolated ? 'the kernel isolates it'
      : 'it is reserved, or belongs to a pod without a class'],
    ['Since', pod ? sinceOf(pod) : ''], ['Pools', pools.join(', ') || 'none'],
    ['Load', element('span', {id: 'detail-load', text: percent(loadOf(id))})],
    ['Core', `${cpu.core}${siblings.length ? `, with CPU ${siblings.join(', ')}` : ''}${cpu.kind ? `, kind ${cpu.kind}` : ''}`],
    ['L3 cache', cache.length ? `CPUs ${ranges(cache)}` : ''], ['NUMA node', String(cpu.node)], ['Socket', String(cpu.socket)]],
  pod ? storyOf(pod.title) : [], {cpu: id, node: node.node});
};
const showDevice = address => {
  const device = devicesByAddress.get(address);
  if (!device) return Detail.show(`device ${address}`, `Device ${address}`, [['State', 'The agent does not see this device.']]);
  const used = now && now.devices[address];
  return Detail.show(`device ${address}`, `${nameOf(device)} ${address}`, [
    ['Name', device.name], ['Health', device.healthy === null || device.healthy === undefined ? 'unknown' : device.healthy ? 'healthy' : 'unhealthy'],
    [device.healthy === false ? 'Reason' : 'State', device.state], ['Pods', listOf(holdersOf(device).map(title => linkTo({pod: title}, title))) || 'none'],
    ['Memory', device.memory_bytes ? `${used && used.memory_used_bytes !== null ? bytes(used.memory_used_bytes) + ' of ' : ''}${bytes(device.memory_bytes)}` : ''],
    ['Use', used && used.percent !== null ? `${used.percent} %` : ''], ['Links', device.links.length ? element('ul', {}, ...device.links.map(text => element('li', {text}))) : ''],
    ['Instances', device.parts.length ? element('ul', {}, ...device.parts.map(part => element('li', {}, mono(part.uuid), ' ', part.holders.join(', ') || 'free'))) : ''],
    ['NUMA node', device.node < 0 ? 'unknown' : String(device.node)], ['Place', placeOf(device)], ['Driver', device.driver], ['ID', mono(device.id)]],
  [], {device: address, node: node.node});
};
const ranges = list => {
  const found = [];
  for (const id of [...list].sort((one, other) => one - other)) {
    const last = found[found.length - 1];
    if (last && last[1] === id - 1) last[1] = id; else found.push([id, id]);
  }
  return found.map(([first, last]) => first === last ? first : `${first}-${last}`).join(',');
};
const drawSelected = () => {
  if (!node) return;
  const chosen = Address.read();
  const title = chosen.pod || (chosen.cpu && ownerOf.has(Number(chosen.cpu)) && ownerOf.get(Number(chosen.cpu)).title);
  for (const [id, made] of cells) {
    const key = `${chosen.cpu === String(id)} ${Boolean(title) && ownerOf.has(id) && ownerOf.get(id).title === title} ${made.owner}`;
    if (made.chosen === key) continue;
    made.chosen = key;
    made.setAttribute('aria-pressed', String(chosen.cpu === String(id)));
    made.classList.toggle('same', Boolean(title) && ownerOf.has(id) && ownerOf.get(id).title === title);
  }
  for (const made of document.querySelectorAll('.device')) made.toggleAttribute('data-selected', made.dataset.device === chosen.device);
  for (const row of byId('pods').children) row.toggleAttribute('data-selected', row.querySelector('a').textContent === chosen.pod);
  if (chosen.pod) showPod(chosen.pod);
  else if (chosen.cpu !== undefined) showCpu(Number(chosen.cpu));
  else if (chosen.device) showDevice(chosen.device);
  else Detail.hide();
  if (chosen.node && chosen.node !== node.node && Detail.key)
    byId('detail').prepend(element('p', {class: 'tag warn', text: `The address is of node ${chosen.node}; this is ${node.node}.`}));
};
Address.onchange(drawSelected);

/* All CPUs are one tab stop; arrow keys move between them. */
byId('picture').addEventListener('keydown', event => {
  if (!event.target.dataset.cpu) return;
  const steps = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 8, ArrowUp: -8, Home: -order.length, End: order.length};
  if (!(event.key in steps)) return;
  event.preventDefault();
  const place = order.indexOf(Number(event.target.dataset.cpu)) + steps[event.key];
  const next = cells.get(order[Math.min(Math.max(place, 0), order.length - 1)]);
  for (const made of cells.values()) made.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});

const applyState = value => {
  const before = node && JSON.stringify([node.cpus, node.parts]);
  node = value;
  node.byCpu = new Map(node.cpus.map(cpu => [cpu.id, cpu]));
  node.kinds = new Set(node.cpus.map(cpu => cpu.kind)).size;
  for (const pool of node.pools) pool.set = new Set(numbers(pool.cpus));
  podsByUid = new Map(node.pods.map(pod => [pod.uid, pod]));
  podsByTitle = new Map(node.pods.map(pod => [pod.title, pod]));
  devicesByAddress = new Map(node.devices.map(device => [device.address, device]));
  ownerOf = new Map(node.pods.flatMap(pod => numbers(pod.own).map(cpu => [cpu, pod])));
  byId('name').textContent = node.node;
  document.title = `${node.node} \u2013 Topolet`;
  byId('foot').textContent = `Topolet, as the agent of ${node.node} sees it. This page changes nothing. Times are in ${TIME_ZONE}.`;
  if (before !== JSON.stringify([node.cpus, node.parts])) drawMachine();
  drawHardware();
  paintCells();
};
let states = -1, histories = -1, usages = 0, turns = 0, problem = null;
repeat(1, () => `The agent${node ? ` of ${node.node}` : ''}`, async () => {
  const began = performance.now();
  const found = await ask('/page/load');
  const changed = found.state !== states, recorded = found.history !== histories, sampled = found.usage !== usages;
  const [state, history_, usage] = await Promise.all([changed ? ask('/page/state') : null, recorded ? ask('/page/history') : null,
    sampled ? ask('/page/usage') : null]);
  const drawn = performance.now();
  if (history_) { past = history_; histories = found.history; }
  if (usage) { hour = usage.hour; usages = found.usage; }
  if (state) { applyState(state); states = found.state; }
  const loads = Uint8Array.from(atob(found.load), each => each.charCodeAt(0));
  now = {...found, loads: new Map(node.cpus.map((cpu, index) => [cpu.id, loads[index]]))};
  paintLoads();
  drawFigures();
  drawDevices();
  if (state) drawSearch(); else if (recorded) drawPods(); else paintPods();
  if (state || recorded || found.problem !== problem) drawAttention();
  problem = found.problem;
  if (usage || state) drawHour();
  if (state || recorded || usage || turns % 15 === 0) drawPools();
  turns += 1;
  if (recorded) drawChanges();
  if (usage && byId('detail-hour')) {
    const pod = podsByTitle.get(Address.read().pod);
    byId('detail-hour').replaceChildren(...pod ? hourOf(pod) : []);
  }
  if (state || recorded) drawSelected();
  else if (byId('detail-load')) {
    const chosen = Address.read();
    byId('detail-load').textContent = percent(chosen.pod ? podLoad(podsByTitle.get(chosen.pod) || {own: ''}) : loadOf(Number(chosen.cpu)));
  }
  Status.good(found.time);
  performance.measure('topolet-frame', {start: drawn, end: performance.now()});
  performance.clearMeasures();
});
