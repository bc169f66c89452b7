// Client leases: those that end soonest first.

import { el, button, ask, span, Rows, notice, problem, count, named } from './parts.js';
import { get, post, fromWire } from './api.js';

const EVERY = 2000;
const LEASES_MAX = 20000;

// All leases, page by page.
export async function allLeases(signal) {
  const leases = [];
  let next = '';
  do {
    const page = await get(`/v3/leasehold/leases${next && `?after=${next}`}`, signal);
    leases.push(...page.leases);
    next = page.next;
  } while (next && leases.length < LEASES_MAX);
  return leases;
}
export const hex = id => BigInt(id).toString(16).padStart(16, '0');

export function leases(main, { signal }) {
  const said = el('div');
  const total = el('p', { class: 'soft num', id: 'total' });
  const panel = el('div', { id: 'lease-panel' }, el('section', { class: 'card soft' }, 'Choose a lease to see its keys.'));
  let read = 0;
  let picked = null;
  const left = lease => (lease.is_revoking || lease.remaining_ms === null ? 0 : Math.max(0, lease.remaining_ms - (performance.now() - read)));
  const isAtRisk = lease => left(lease) < lease.granted_ttl_ms / 3;
  const rows = new Rows({ label: 'Leases, those that end soonest first', height: 34, name: lease => lease.id, row: lease => {
    const fill = el('div', { class: 'fill' });
    fill.style.transform = `scaleX(${Math.min(1, left(lease) / lease.granted_ttl_ms)})`;
    return el('div', { class: lease.id === picked ? 'chosen' : '' }, el('div', { class: 'lease' },
      el('span', { class: 'mono cut', title: hex(lease.id) }, lease.name || hex(lease.id)),
      el('div', { class: `track thin${isAtRisk(lease) ? ' low' : ''}` }, fill),
      el('span', { class: 'num' }, lease.is_revoking ? 'ending' : span(left(lease)))));
  }, chosen: lease => { if (lease) { picked = lease.id; open(lease); } } });
  main.replaceChildren(el('h2', {}, 'Leases'), said, total, el('div', { class: 'split' }, rows.node, panel));

  async function refresh() {
    try {
      const list = await allLeases(signal);
      read = performance.now();
      list.sort((a, b) => (isAtRisk(b) - isAtRisk(a)) || left(a) - left(b));
      rows.set(list);
      const risk = list.filter(isAtRisk).length;
      total.textContent = `${count(list.length)} leases, ${count(risk)} with less than a third left`;
      said.replaceChildren();
    } catch (error) {
      if (signal.aborted) return;
      said.replaceChildren(notice(`${problem(error, 'see the leases')}${read ? ` Shown as of ${span(performance.now() - read)} ago.` : ''}`));
      if (error.wantsLogin) return;
    }
    setTimeout(() => { if (!signal.aborted) refresh(); }, EVERY);
  }
  const drain = setInterval(() => rows.draw(), 250);
  signal.addEventListener('abort', () => { clearInterval(drain); rows.sizes.disconnect(); });

  async function open(lease) {
    const keys = el('ol', { class: 'queue' });
    const answer = el('div');
    const pair = (name, value) => [el('dt', {}, name), el('dd', {}, value)];
    panel.replaceChildren(el('section', { class: 'card' }, el('div', { class: 'head' }, el('h3', { class: 'mono' }, hex(lease.id)), button('Revoke', revoke, 'bad right')), answer,
      el('dl', {}, pair('name', lease.name || '–'), pair('owner', lease.owner || '–'), pair('time to live', span(lease.granted_ttl_ms)),
        pair('granted', lease.granted_at_ms ? new Date(lease.granted_at_ms).toLocaleString() : '–'), pair('keys', count(lease.key_count))), keys));
    try {
      const found = await post('/v3/lease/timetolive', { ID: lease.id, keys: true }, signal);
      keys.replaceChildren(...(found.keys || []).slice(0, 500).map(key => el('li', {}, named(fromWire(key)))));
    } catch (error) { if (!signal.aborted) answer.replaceChildren(notice(problem(error, 'see the keys of this lease'))); }
    async function revoke() {
      if (!await ask('Revoke this lease?', `Its ${count(lease.key_count)} keys are deleted at once. A lock that its holder has by it is lost.`, 'Revoke', 'bad')) return;
      try {
        await post('/v3/lease/revoke', { ID: lease.id });
        panel.replaceChildren(notice('Revoked.', 'done'));
      } catch (error) { answer.replaceChildren(notice(problem(error, 'revoke this lease', true))); }
    }
  }
  refresh();
}
