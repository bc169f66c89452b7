// The live tail of a prefix.

import { el, button, shown, asText, Rows, notice, problem, count } from './parts.js';
import { changes, forever, rangeOf, toBytes, record } from './api.js';

const EVENTS_MAX = 5000;

export function watch(main, { signal, rest }) {
  const said = el('div');
  const prefix = el('input', { id: 'watched', spellcheck: 'false' });
  prefix.value = rest;
  const from = el('input', { inputmode: 'numeric', placeholder: 'now', size: 12, id: 'from' });
  const filter = el('input', { type: 'search', oninput: () => draw(), id: 'filter' });
  const total = el('p', { class: 'soft num', id: 'total', role: 'status' }, 'Nothing watched yet.');
  let events = [];
  let waiting = [];
  let isPaused = false;
  let following = null;
  const rows = new Rows({ label: 'Changes, the newest first', row: event => el('div', { class: event.fresh && performance.now() - event.at < 1600 ? 'flash' : '' },
    el('span', { class: 'num soft' }, count(event.mod)), el('span', { class: 'tag' }, event.gone ? 'delete' : event.version === 1 ? 'create' : 'put'),
    el('span', { class: 'mono key' }, shown(event.key)), el('span', { class: 'mono soft cut' }, event.gone ? '' : shown(event.value.slice(0, 200)))) });
  const pause = button('Pause', () => { isPaused = !isPaused; pause.textContent = isPaused ? 'Go on' : 'Pause'; if (!isPaused) { take(waiting); waiting = []; } draw(); });
  pause.disabled = true;
  const copy = button('Copy', async () => {
    const text = matching().map(event => JSON.stringify({ revision: event.mod, type: event.gone ? 'delete' : 'put', key: asText(event.key) ?? [...event.key].map(char => char.charCodeAt(0)), value: event.gone ? undefined : asText(event.value) ?? [...event.value].map(char => char.charCodeAt(0)) })).join('\n');
    try { await navigator.clipboard.writeText(text); total.textContent = 'Copied, one JSON object a line.'; } catch { said.replaceChildren(notice('The browser does not let this page copy: it must be opened on loopback or over HTTPS.')); }
  });
  const form = el('form', { class: 'bar-row' }, el('label', { class: 'grow' }, 'Prefix', prefix), el('label', {}, 'From revision', from), el('button', { class: 'main' }, 'Watch'), pause, copy, el('label', {}, 'Filter', filter));
  form.addEventListener('submit', event => { event.preventDefault(); start(); });
  main.replaceChildren(el('h2', {}, 'Watch'), form, said, total, rows.node);
  signal.addEventListener('abort', () => { following?.abort(); rows.sizes.disconnect(); });

  const matching = () => {
    const wanted = toBytes(filter.value);
    return wanted ? events.filter(event => event.key.includes(wanted) || event.value.includes(wanted)) : events;
  };
  function take(more) {
    events = [...more].reverse().concat(events).slice(0, EVENTS_MAX);
  }
  function draw() {
    if (draw.due || signal.aborted) return;
    draw.due = requestAnimationFrame(() => {
      draw.due = 0;
      const found = matching();
      rows.set(found);
      total.textContent = `${count(found.length)} changes${filter.value ? ' that match' : ''}${isPaused ? `, ${count(waiting.length)} more wait` : ''}${events.length >= EVENTS_MAX ? `; older ones were dropped` : ''}`;
    });
  }
  function start() {
    following?.abort();
    following = new AbortController();
    const own = following.signal;
    const begin = from.value.trim().replace(/[,_ ]/g, '');
    if (begin && !/^\d{1,18}$/.test(begin)) { said.replaceChildren(notice('A revision is a whole number: leave the field empty to begin now.')); return; }
    events = [];
    waiting = [];
    said.replaceChildren();
    pause.disabled = false;
    let next = begin;
    let compacted = false;
    forever(own, () => changes({ ...rangeOf(toBytes(prefix.value)), ...(next && { start_revision: next }) }, message => {
      if (message.compact_revision) { compacted = true; throw new Error(`Revision ${count(+next)} is compacted: the oldest that is there is ${count(+message.compact_revision)}.`); }
      said.replaceChildren();
      const more = (message.events || []).map(event => ({ ...record(event.kv), gone: event.type === 'DELETE', at: performance.now(), fresh: true }));
      // After a break it goes on behind what was seen.
      if (more.length) next = String(more.at(-1).mod + 1);
      else if (message.created && !next) next = String(+message.header.revision + 1);
      if (isPaused) waiting = waiting.concat(more).slice(-EVENTS_MAX); else take(more);
      draw();
    }, own), error => {
      said.replaceChildren(notice(error.isDenied || error.wantsLogin ? problem(error, 'watch these keys') : error.message));
      return compacted || error.isDenied || error.wantsLogin;
    });
    draw();
  }
  start();
}
