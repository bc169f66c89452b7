// The keys as a tree, split at `/`, opened a page at a time.

import { el, button, named, shown, Rows, notice, problem, ask, count, asText } from './parts.js';
import { post, changes, forever, rangeOf, fromWire, toWire, toBytes, prefixEnd, readable, record } from './api.js';
import { recordPanel } from './record.js';

const FIRST = 200;
const LATER = 2000;
const ASKED_MAX = 40;

export function keys(main, { signal, rest }) {
  let root = toBytes(rest);
  let tree = folder(root, 0);
  let picked = null;
  const said = el('div');
  const total = el('span', { class: 'soft num', id: 'total' });
  const input = el('input', { id: 'prefix', spellcheck: 'false' });
  input.value = rest;
  const panel = el('div', { id: 'record' }, el('section', { class: 'card soft' }, 'Choose a key to see its value and its history.'));
  const flashes = new Map();
  const rows = new Rows({ label: 'Keys', role: 'tree', row: drawRow, chosen: choose, key: arrows, more: last => grow(last) });
  const form = el('form', { class: 'bar-row' }, el('label', { class: 'grow' }, 'Prefix', input), el('button', { class: 'main' }, 'Open'), button('New key', create), total);
  form.addEventListener('submit', event => { event.preventDefault(); location.hash = `keys/${encodeURIComponent(input.value)}`; });
  main.replaceChildren(el('h2', {}, 'Keys'), form, said, el('div', { class: 'split' }, rows.node, panel));
  signal.addEventListener('abort', () => { rows.sizes.disconnect(); select.off?.abort(); });

  function folder(key, level) { return { key, level, kind: 'folder', rows: [], cursor: key || '\0', end: prefixEnd(key), done: false, open: level === 0, busy: false }; }

  // The next page of a folder: what lies below a folder in it is passed over in one step.
  async function load(into) {
    if (into.busy || into.done) return;
    into.busy = true;
    const limit = into.rows.length ? LATER : FIRST;
    const wanted = into.rows.length + limit;
    try {
      for (let asked = 0; asked < ASKED_MAX && !into.done && into.rows.length < wanted; asked++) {
        const range = await post('/v3/kv/range', { key: toWire(into.cursor), range_end: toWire(into.end), limit, keys_only: true }, signal);
        const found = (range.kvs || []).map(kv => fromWire(kv.key));
        if (into === tree && asked === 0 && !into.rows.length) total.textContent = `${count(+(range.count || 0))} keys`;
        for (const key of found) {
          if (key < into.cursor) continue;
          const cut = key.indexOf('/', into.key.length);
          const last = into.rows.at(-1);
          if (cut < 0) into.rows.push({ kind: 'key', key, level: into.level + 1 });
          else if (last?.kind !== 'folder' || !key.startsWith(last.key)) into.rows.push(folder(key.slice(0, cut + 1), into.level + 1));
          into.cursor = cut < 0 ? `${key}\0` : prefixEnd(key.slice(0, cut + 1));
        }
        into.done = !range.more || (into.end !== '\0' && into.cursor >= into.end);
      }
      said.replaceChildren();
      if (into === tree && !into.rows.length) said.replaceChildren(notice(root ? 'No key has this prefix now. A new one appears here by itself.' : 'There are no keys yet. A new one appears here by itself.', 'done'));
    } catch (error) {
      if (!signal.aborted) await refused(error);
      into.failed = true;
    } finally { into.busy = false; }
    flatten();
  }

  async function refused(error) {
    said.replaceChildren(notice(problem(error, `read the keys below ${JSON.stringify(rest)}`)));
    if (!error.isDenied) return;
    const prefixes = await readable().catch(() => []);
    if (prefixes.length) said.append(el('p', {}, 'You may read: ', prefixes.map(prefix => [el('a', { href: `#keys/${encodeURIComponent(asText(prefix) ?? '')}` }, shown(prefix)), ' '])));
  }

  let items = [];
  function flatten() {
    items = [];
    const walk = into => {
      for (const row of into.rows) {
        items.push(row);
        if (row.open) walk(row);
      }
      if (!into.done && into.rows.length) items.push({ kind: 'more', into, level: into.level + 1 });
    };
    walk(tree);
    rows.set(items);
  }
  function grow(last) {
    for (let place = Math.max(0, last - 60); place < Math.min(items.length, last + 40); place++)
      if (items[place].kind === 'more' && !items[place].into.busy && !items[place].into.failed) load(items[place].into);
  }

  function drawRow(item) {
    const indent = el('span', { class: 'twig' });
    indent.style.marginLeft = `${(item.level - 1) * 16}px`;
    if (item.kind === 'more') return el('div', { class: 'soft', 'aria-level': item.level }, indent, item.into.failed ? 'not loaded: press to try again' : 'more …');
    const parent = item.key.lastIndexOf('/', item.key.length - 2);
    const label = item.key.slice(item.level === 1 ? root.length : parent + 1) || item.key;
    indent.textContent = item.kind === 'folder' ? (item.open ? '▾' : '▸') : '';
    const since = flashes.get(item.key);
    const flash = since && performance.now() - since < 1600;
    return el('div', { class: [item === picked && 'chosen', flash && 'flash'].filter(Boolean).join(' '), 'aria-level': item.level, 'aria-expanded': item.kind === 'folder' ? String(item.open) : null, title: asText(item.key) ? null : 'not UTF-8' }, indent, named(label));
  }

  function choose(item) {
    if (!item) return;
    if (item.kind === 'more') { item.into.failed = false; load(item.into); }
    else if (item.kind === 'folder') toggle(item, !item.open);
    else { picked = item; select(item.key); }
  }
  function toggle(item, open) {
    item.open = open;
    if (open && !item.rows.length) load(item);
    flatten();
  }
  function arrows(event, item) {
    if (item?.kind !== 'folder' || !['ArrowRight', 'ArrowLeft'].includes(event.key)) return false;
    toggle(item, event.key === 'ArrowRight');
    return true;
  }
  function select(key) {
    select.off?.abort();
    select.off = new AbortController();
    recordPanel(panel, key, select.off.signal);
  }

  async function create() {
    const given = await ask('New key', 'Refused if the key exists by then.', 'Create', 'main', [{ name: 'key', label: 'Key', value: rest }, { name: 'value', label: 'Value', rows: 4 }]);
    if (!given) return;
    const key = toBytes(given.key);
    try {
      const done = await post('/v3/kv/txn', { compare: [{ key: toWire(key), target: 'CREATE', result: 'EQUAL', create_revision: '0' }], success: [{ request_put: { key: toWire(key), value: toWire(toBytes(given.value)) } }] });
      if (!done.succeeded) said.replaceChildren(notice('That key exists already: choose it in the tree to change it.'));
      select(key);
    } catch (error) { said.replaceChildren(notice(problem(error, 'write this key', true))); }
  }

  // A change: the row flashes, and appears or goes where its folder is open.
  function changed(event) {
    const key = record(event.kv).key;
    const isGone = event.type === 'DELETE';
    let into = tree;
    for (;;) {
      const cut = key.indexOf('/', into.key.length);
      const name = cut < 0 ? key : key.slice(0, cut + 1);
      let low = 0;
      for (let high = into.rows.length; low < high;) { const half = (low + high) >> 1; if (into.rows[half].key < name) low = half + 1; else high = half; }
      const row = into.rows[low]?.key === name ? into.rows[low] : null;
      flashes.set(name, performance.now());
      if (cut >= 0 && row) {
        if (!row.open) break;
        into = row;
        continue;
      }
      const isCovered = into.done || name < into.cursor;
      if (!row && !isGone && isCovered) into.rows.splice(low, 0, cut < 0 ? { kind: 'key', key, level: into.level + 1 } : folder(name, into.level + 1));
      if (row && isGone && cut < 0) into.rows.splice(low, 1);
      if (into === tree && into.rows.length) said.replaceChildren();
      break;
    }
    if (flashes.size > 2000) flashes.clear();
    if (!changed.due) changed.due = setTimeout(() => { changed.due = 0; flatten(); }, 100);
  }
  load(tree).then(() => forever(signal, () => changes(rangeOf(root), message => (message.events || []).forEach(changed), signal), error => {
    if (error.isDenied || error.wantsLogin) return true;
    said.replaceChildren(notice(`Changes are not seen at the moment: ${error.message}`, 'warn'));
    const before = tree;
    // What was missed is read again once the node answers.
    tree = Object.assign(folder(root, 0), { rows: [] });
    load(tree).then(() => { if (tree.failed) tree = before; flatten(); });
    return false;
  }));
}
