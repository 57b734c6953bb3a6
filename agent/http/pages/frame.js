/* What all pages share: elements (never made from HTML text), times with their zone, colours, pause,
   search, the address of the selected object, and the requests that update the page. */
const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'text') made.textContent = value;
    else if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (name.startsWith('--')) made.style.setProperty(name, value);
    else made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children.filter(each => each !== null && each !== undefined && each !== ''));
  return made;
};
const byId = id => document.getElementById(id);

/* Gives `parent` one child for each of `items`, in their order. A child whose `key(item)` was there
   before is kept, with its focus and selection. `make(item)` makes a child, `update(child, item)`
   fills it. */
const keep = (parent, items, key, make, update = () => {}) => {
  const before = new Map([...parent.children].map(each => [each.dataset.key, each]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = before.get(name);
    if (!child) { child = make(item); child.dataset.key = name; }
    before.delete(name);
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const gone of before.values()) gone.remove();
};

const TIME_ZONE = (() => { try { return Intl.DateTimeFormat().resolvedOptions().timeZone; } catch { return 'UTC'; } })();
const hours = new Intl.DateTimeFormat('en-GB', {hour: '2-digit', minute: '2-digit', second: '2-digit', timeZoneName: 'short'});
const days = new Intl.DateTimeFormat('en-GB', {day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit', second: '2-digit', timeZoneName: 'short'});
const timed = stamp => {
  const when = new Date(stamp);
  if (Number.isNaN(when.getTime())) return 'unknown';
  return (Date.now() - when.getTime() < 12 * 3600e3 ? hours : days).format(when);
};
const timeElement = stamp => element('time', {datetime: stamp, title: `${stamp} (${TIME_ZONE})`, text: timed(stamp)});
const bytes = size => {
  let value = size, unit = 0;
  while (value >= 1024 && unit < 5) { value /= 1024; unit += 1; }
  return `${value < 100 && unit ? value.toFixed(1).replace(/\.0$/, '') : Math.round(value)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][unit]}`;
};

/* The numbers of a CPU list in the kernel's form, such as "0-3,8". */
const numbers = list => (list || '').split(',').filter(Boolean).flatMap(range => {
  const [first, last = first] = range.split('-').map(Number);
  return Array.from({length: last - first + 1}, (_, index) => first + index);
});

const countOf = list => (list || '').split(',').filter(Boolean).reduce((sum, range) => {
  const [first, last = first] = range.split('-').map(Number);
  return sum + last - first + 1;
}, 0);

/* The selected object, in the page's address after "#": `pod=ns/name`, or several names and values,
   joined by "&". */
const Address = {
  read: () => {
    const found = {};
    for (const part of location.hash.slice(1).split('&')) {
      const [name, value = ''] = part.split(/=(.*)/s);
      if (name) try { found[name] = decodeURIComponent(value); } catch { found[name] = value; }
    }
    return found;
  },
  of: facts => '#' + Object.entries(facts).map(([name, value]) =>
    `${name}=${encodeURIComponent(value).replaceAll('%2F', '/').replaceAll('%3A', ':')}`).join('&'),
  open: facts => { location.hash = Address.of(facts); },
  close: () => { history.pushState(null, '', location.pathname); window.dispatchEvent(new HashChangeEvent('hashchange')); },
  onchange: call => window.addEventListener('hashchange', () => call(Address.read())),
};
const linkTo = (facts, text) => element('a', {href: Address.of(facts), text});

const Status = {
  answered: null,
  show: (state, text) => {
    byId('status').dataset.state = state;
    if (byId('status-text').textContent !== text) byId('status-text').textContent = text;
  },
  good: stamp => {
    Status.answered = stamp;
    document.documentElement.classList.remove('stale');
    byId('stale').hidden = true;
    byId('clock').textContent = timed(stamp);
    byId('clock').setAttribute('datetime', stamp);
    Status.show('good', 'Live');
  },
  silent: (who, why) => {
    document.documentElement.classList.add('stale');
    Status.show('bad', 'No answer');
    const since = Status.answered ? ` Everything below is as of ${timed(Status.answered)}.` : '';
    const text = `${who} does not answer (${why}).${since} This page asks again every few seconds.`;
    if (byId('stale').textContent !== text) byId('stale').textContent = text;
    byId('stale').hidden = false;
  },
};

const ask = async path => {
  const reply = await fetch(path, {cache: 'no-store', credentials: 'omit', signal: AbortSignal.timeout(5000)});
  if (!reply.ok) throw new Error(`${reply.status} ${(await reply.text()).trim()}`);
  return reply.json();
};

const Pause = {paused: false};
byId('pause').addEventListener('click', () => {
  Pause.paused = !Pause.paused;
  byId('pause').setAttribute('aria-pressed', String(Pause.paused));
  byId('pause').textContent = Pause.paused ? 'Continue' : 'Pause';
  if (Pause.paused) Status.show('paused', 'Paused');
});

/* Calls `step` every `seconds` (less often after failures), one call at a time, while the page is
   visible and not paused. `who`: returns the name of the process, for the message of a failure. */
const repeat = (seconds, who, step) => {
  let failures = 0;
  const turn = async () => {
    if (!Pause.paused && !document.hidden) {
      try { await step(); failures = 0; } catch (error) {
        failures += 1;
        const why = error.name === 'TimeoutError' ? 'no reply in time' : error.name === 'TypeError' ? 'no connection' : error.message;
        Status.silent(who(), why);
        if (error.name !== 'TimeoutError' && error.name !== 'TypeError' && !/^\d{3} /.test(error.message)) console.error(error);
      }
    }
    setTimeout(turn, 1000 * Math.min(seconds * 2 ** Math.min(failures, 2), 5));
  };
  document.addEventListener('visibilitychange', () => { failures = 0; });
  turn();
};

const Theme = (() => {
  const root = document.documentElement, field = byId('theme');
  const apply = value => { if (value) root.dataset.theme = value; else delete root.dataset.theme; };
  try { field.value = localStorage.getItem('topolet-theme') || ''; } catch { field.value = ''; }
  apply(field.value);
  field.addEventListener('change', () => {
    apply(field.value);
    try { localStorage.setItem('topolet-theme', field.value); } catch { /* Storage is disabled. */ }
  });
})();

const Search = {text: '', onchange: () => {}};
byId('search').addEventListener('input', event => { Search.text = event.target.value.trim().toLowerCase(); Search.onchange(); });
document.addEventListener('keydown', event => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === '/' && !typing && !event.ctrlKey && !event.metaKey) { event.preventDefault(); byId('search').focus(); }
  if (event.key === 'Escape') {
    if (event.target.id === 'search' && Search.text) { event.target.value = ''; Search.text = ''; Search.onchange(); }
    else if (location.hash) Address.close();
  }
});
document.querySelector('[data-skip]').addEventListener('click', event => { event.preventDefault(); byId('main').focus(); });

/* The details of the selected object, in the element `#detail`: a title, facts (name, and element or
   text), further elements (`more`), and the names and values of the address to copy (`link`). */
const Detail = {
  key: '',
  show: (key, title, facts, more = [], link = null) => {
    const place = byId('detail');
    const fresh = key !== Detail.key;
    Detail.key = key;
    place.hidden = false;
    const list = element('dl', {class: 'facts'});
    for (const [name, value] of facts) {
      if (value === null || value === undefined || value === '') continue;
      list.append(element('dt', {text: name}), element('dd', {}, value));
    }
    const focused = place.contains(document.activeElement) ? document.activeElement.id : '';
    const title_ = element('h2', {id: 'detail-title', tabindex: '-1', text: title});
    const buttons = element('div', {class: 'buttons'},
      link ? element('button', {type: 'button', id: 'copy', onclick: () => Detail.copy(link), text: 'Copy address'}) : null,
      element('button', {type: 'button', id: 'close', onclick: Address.close, text: 'Close'}));
    place.replaceChildren(title_, list, buttons, ...more);
    if (fresh && Detail.clicked) title_.focus({preventScroll: matchMedia('(max-width: 640px)').matches});
    else if (focused && byId(focused)) byId(focused).focus({preventScroll: true});
    Detail.clicked = false;
  },
  hide: () => {
    const opener = Detail.opener;
    Detail.key = '';
    const inside = byId('detail').contains(document.activeElement);
    byId('detail').hidden = true;
    byId('detail').replaceChildren();
    if (inside && opener && opener.isConnected) opener.focus();
  },
  copy: async facts => {
    const text = location.origin + location.pathname + Address.of(facts);
    try { await navigator.clipboard.writeText(text); byId('copy').textContent = 'Copied'; } catch { prompt('Address', text); }
  },
};
/* The details get the focus only after a click, not after another change of the address. */
document.addEventListener('click', event => {
  const link = event.target.closest('a[href^="#"], button[data-address]');
  if (!link || link.dataset.skip !== undefined) return;
  Detail.clicked = true;
  if (!byId('detail').contains(link)) Detail.opener = link;
  if (link.dataset.address) location.hash = link.dataset.address;
}, true);
