// Locks and elections: queues of keys whose last part is the lease that each is attached to. The key that was
// created first holds; its revision is the fencing token.

import { el, shown, notice, problem, count, span, named } from './parts.js';
import { post, fromWire, rangeOf, record } from './api.js';
import { allLeases } from './leases.js';

const EVERY = 3000;
const LEASES_MAX = 400;

export function locks(main, { signal }) {
  const said = el('div');
  const cards = el('div', { class: 'grid', id: 'locks' });
  const seen = new Map();
  main.replaceChildren(el('h2', {}, 'Locks and elections'), said, cards);

  const isPlace = (key, lease) => {
    const match = /^([0-9a-f]{1,16})(-[0-9a-f]+)?$/.exec(key.slice(key.lastIndexOf('/') + 1));
    return match && BigInt(`0x${match[1]}`) === BigInt(lease);
  };

  async function refresh() {
    try {
      const leases = (await allLeases(signal)).filter(lease => lease.key_count > 0);
      const byId = new Map(leases.map(lease => [lease.id, lease]));
      const queues = new Set();
      for (let at = 0; at < Math.min(leases.length, LEASES_MAX); at += 16) {
        await Promise.all(leases.slice(at, at + 16).map(async lease => {
          const found = await post('/v3/lease/timetolive', { ID: lease.id, keys: true }, signal).catch(error => { if (error.isDenied) return {}; throw error; });
          for (const key of (found.keys || []).map(fromWire)) if (isPlace(key, lease.id)) queues.add(key.slice(0, key.lastIndexOf('/') + 1));
        }));
      }
      const found = await Promise.all([...queues].sort().map(async prefix => {
        const range = await post('/v3/kv/range', { ...rangeOf(prefix), sort_target: 'CREATE', sort_order: 'ASCEND', limit: 200 }, signal);
        return [prefix, (range.kvs || []).map(record).filter(kv => isPlace(kv.key, kv.lease))];
      }));
      const now = Date.now();
      cards.replaceChildren(...found.filter(([, queue]) => queue.length).map(([prefix, queue]) => card(prefix, queue, byId, now)));
      said.replaceChildren();
      if (!cards.childElementCount) said.replaceChildren(notice('Nobody holds a lock or leads an election now.', 'done'));
      if (leases.length > LEASES_MAX) said.append(notice(`Only the first ${LEASES_MAX} leases with keys were looked at.`, 'warn'));
    } catch (error) {
      if (signal.aborted) return;
      said.replaceChildren(notice(problem(error, 'see the locks')));
      if (error.wantsLogin) return;
    }
    setTimeout(() => { if (!signal.aborted) refresh(); }, EVERY);
  }

  function card(prefix, [holder, ...waiting], byId, now) {
    if (seen.get(prefix)?.key !== holder.key) seen.set(prefix, { key: holder.key, at: seen.has(prefix) ? now : 0 });
    const pair = (name, value) => [el('dt', {}, name), el('dd', {}, value)];
    const lease = byId.get(holder.lease);
    const { at } = seen.get(prefix);
    const since = at ? `${span(now - at)} ago` : lease?.granted_at_ms ? `at most ${span(now - lease.granted_at_ms)} ago` : '–';
    const who = kv => (kv.value ? shown(kv.value.slice(0, 80)) : lease?.owner && kv === holder ? lease.owner : named(kv.key.slice(prefix.length)));
    return el('section', { class: 'card' }, el('h3', { class: 'key mono' }, shown(prefix.slice(0, -1))),
      el('dl', {}, pair('held by', who(holder)), pair('since', since), pair('fencing token', count(holder.create)), pair('lease', BigInt(holder.lease).toString(16)), pair('waiting', count(waiting.length))),
      waiting.length ? el('ol', { class: 'queue', 'aria-label': 'waiting, in order' }, waiting.map(kv => el('li', {}, who(kv), el('span', { class: 'soft num' }, ` · since revision ${count(kv.create)}`)))) : '');
  }
  refresh();
}
