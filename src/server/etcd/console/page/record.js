// One key: its value, what is known of it, its history, and changes that never overwrite another one unseen.

import { el, button, shown, asText, asHex, notice, problem, ask, size, count, difference } from './parts.js';
import { post, changes, forever, toWire, toBytes, record } from './api.js';

const SHOWN_MAX = 32 << 10;
const STEPS_MAX = 500;
const NOTHING = 'There is no such key now.';

export function recordPanel(into, key, signal) {
  let current = null;
  let form = 'text';
  let steps = [];
  const said = el('div');
  const missing = el('div');
  const facts = el('dl');
  const value = el('pre', { class: 'value mono', tabindex: 0, 'aria-label': 'Value' });
  const forms = ['text', 'json', 'hex'].map(each => button({ text: 'Text', json: 'JSON', hex: 'Hex' }[each], () => { form = each; draw(); }, '', { 'data-form': each }));
  const edit = button('Edit', change, 'main');
  const remove = button('Delete', erase, 'bad');
  const history = el('ol', { class: 'steps', tabindex: 0, 'aria-label': 'History' });
  const compared = el('div');
  const body = el('div', {}, el('div', { class: 'head' }, forms, el('span', { class: 'right head' }, edit, remove)), value, facts);
  into.replaceChildren(el('section', { class: 'card' }, el('h3', { class: 'key mono' }, shown(key)), said, missing, body),
    el('section', { class: 'card stack' }, el('h3', {}, 'History'), history, compared));

  function draw() {
    edit.disabled = remove.disabled = !current;
    for (const each of forms) each.setAttribute('aria-pressed', each.dataset.form === form);
    if (!current) { value.replaceChildren(); facts.replaceChildren(); return; }
    fill(value, current.value, form);
    const pair = (name, text) => [el('dt', {}, name), el('dd', {}, text)];
    facts.replaceChildren(...[pair('created at revision', count(current.create)), pair('changed at revision', count(current.mod)), pair('version', count(current.version)),
      pair('lease', current.lease === '0' ? 'none' : BigInt(current.lease).toString(16)), pair('length', size(current.value.length))].flat());
  }
  async function load() {
    try {
      const range = await post('/v3/kv/range', { key: toWire(key) }, signal);
      current = range.kvs ? record(range.kvs[0]) : null;
      missing.replaceChildren(...(current ? [] : [notice(`${NOTHING} Its history is below.`, 'warn')]));
      draw();
    } catch (error) {
      if (signal.aborted) return;
      // Beside what was said of a change, which is true all the same.
      missing.replaceChildren(notice(problem(error, 'read this key')));
      if (error.isUnanswered) load.again ||= setTimeout(() => { load.again = 0; if (!signal.aborted) load(); }, 1000);
    }
  }

  function change(_, start) {
    const seen = current;
    const text = asText(seen.value);
    const isHex = text === null;
    if (seen.value.length > 1 << 20) { said.replaceChildren(notice('This value is too long to be edited here: use `leasehold put`.')); return; }
    const area = el('textarea', { 'aria-label': isHex ? 'New value, in hex' : 'New value', spellcheck: 'false' });
    area.value = start ?? (isHex ? Array.from(seen.value, char => char.charCodeAt(0).toString(16).padStart(2, '0')).join(' ') : text);
    const save = async () => {
      let bytes = isHex ? unhex(area.value) : toBytes(area.value);
      if (bytes === null) { said.replaceChildren(notice('That is not hex: write two digits for each byte.')); return; }
      const done = await transact(seen, { request_put: { key: toWire(key), value: toWire(bytes), ignore_lease: seen.lease !== '0' } }, area.value);
      if (done) { said.replaceChildren(notice('Saved.', 'done')); await load(); body.hidden = false; editor.remove(); }
    };
    const close = () => { editor.remove(); body.hidden = false; };
    const editor = el('div', { id: 'editor' }, el('p', { class: 'soft' }, `Saved only if the key is still at revision ${count(seen.mod)}.`), area, el('div', { class: 'head' }, button('Save', save, 'main'), button('Cancel', close)));
    body.hidden = true;
    body.after(editor);
    area.focus();
  }

  // Does something if nobody changed the key since; says what is there otherwise.
  async function transact(seen, what, mine) {
    try {
      const done = await post('/v3/kv/txn', { compare: [{ key: toWire(key), target: 'MOD', result: 'EQUAL', mod_revision: String(seen.mod) }], success: [what], failure: [{ request_range: { key: toWire(key) } }] });
      if (done.succeeded) return true;
      const found = done.responses?.[0]?.response_range?.kvs?.[0];
      current = found ? record(found) : null;
      document.getElementById('editor')?.remove();
      body.hidden = false;
      draw();
      const lines = current && mine !== undefined && asText(current.value) !== null ? difference(asText(current.value), mine) : [];
      said.replaceChildren(notice(current ? `The key has changed meanwhile: it is at revision ${count(current.mod)} now, and you saw ${count(seen.mod)}. Nothing was written.` : 'The key was deleted meanwhile. Nothing was written.'),
        lines.length ? el('details', { open: true }, el('summary', {}, 'What would change with yours'), el('pre', { class: 'value mono' }, lines)) : '',
        current && mine !== undefined ? button('Edit again from mine', event => { event.target.parentNode.replaceChildren(); change(event, mine); }) : '');
      return false;
    } catch (error) { said.replaceChildren(notice(problem(error, 'write this key', true))); return false; }
  }
  async function erase() {
    const seen = current;
    if (!await ask('Delete this key?', 'It is deleted only if nobody changes it meanwhile. Its history stays until it is compacted.', 'Delete', 'bad')) return;
    if (await transact(seen, { request_delete_range: { key: toWire(key) } })) await load();
  }

  // The history is a watch from the oldest revision that is there, and so goes on by itself.
  let from = 1;
  let oldest = 0;
  const follow = () => {
    steps = [];
    return changes({ key: toWire(key), start_revision: String(from) }, message => {
      if (message.compact_revision) { oldest = from = +message.compact_revision; throw new Error('again'); }
      for (const event of message.events || []) steps.push({ ...record(event.kv), gone: event.type === 'DELETE' });
      if (steps.length > STEPS_MAX) steps = steps.slice(-STEPS_MAX);
      if (message.events) { list(); if (steps.at(-1).mod > (current?.mod ?? 0)) load(); }
    }, signal);
  };
  function list() {
    if (list.due) return;
    list.due = setTimeout(() => {
      list.due = 0;
      const items = steps.map((step, at) => el('li', {}, el('b', { class: 'num' }, count(step.mod)),
        el('span', { class: 'soft cut' }, step.gone ? 'deleted' : [`version ${count(step.version)}, ${size(step.value.length)}: `, el('span', { class: 'mono' }, shown(step.value.slice(0, 60)))]),
        button('Compare', () => compare(at), 'link right', { 'aria-label': `Compare revision ${step.mod} with the one before` }))).reverse();
      history.replaceChildren(...items, el('li', { class: 'soft' }, oldest ? `What was before revision ${count(oldest)} is compacted.` : 'This is all.'));
    }, 50);
  }
  function compare(at) {
    const step = steps[at];
    const choice = el('select', { 'aria-label': 'Compare with', onchange: () => drawIt() }, steps.map((each, place) => (place === at ? null : el('option', { value: place, selected: place === at - 1 }, `revision ${each.mod}`))));
    const out = el('pre', { class: 'value mono', tabindex: 0, 'aria-label': 'Difference' });
    const textOf = each => (each.gone ? '' : asText(each.value.slice(0, SHOWN_MAX)) ?? asHex(each.value.slice(0, SHOWN_MAX)));
    const drawIt = () => out.replaceChildren(...(choice.value === '' ? shown(step.value, true) : difference(textOf(steps[+choice.value]), textOf(step))));
    compared.replaceChildren(el('div', { class: 'head' }, el('h3', {}, `Revision ${count(step.mod)}`), choice.value !== '' && el('label', { class: 'head' }, 'compared with', choice)), out);
    drawIt();
  }
  load();
  forever(signal, follow, error => error.isDenied || error.wantsLogin);
}

// Shows bytes in a form; JSON that is none, and long ones, say so.
export function fill(into, bytes, form) {
  const cut = bytes.slice(0, SHOWN_MAX);
  let parts;
  if (form === 'hex') parts = [asHex(cut)];
  else if (form === 'json') {
    try { parts = shown(toBytes(JSON.stringify(JSON.parse(asText(bytes)), null, 2)), true); } catch { parts = [el('span', { class: 'soft' }, 'This is no JSON.')]; }
  } else parts = shown(/^\0*$/.test(cut) && cut ? '' : cut, true);
  if (form === 'text' && cut && !parts.length) parts = [el('span', { class: 'soft' }, `${count(bytes.length)} bytes of zero`)];
  if (!bytes.length) parts = [el('span', { class: 'soft' }, 'empty')];
  else if (bytes.length > SHOWN_MAX && parts.length && form !== 'json') parts.push(el('span', { class: 'soft' }, `\n… the first ${size(SHOWN_MAX)} of ${size(bytes.length)}`));
  into.replaceChildren(...parts);
}

function unhex(text) {
  const digits = text.replace(/\s+/g, '');
  if (digits.length % 2 || /[^0-9a-f]/i.test(digits)) return null;
  return digits.replace(/../g, pair => String.fromCharCode(parseInt(pair, 16)));
}
