// The frame around the views: where to go, who is logged in, and whether what is shown is fresh.

import { el, button, ask, span, notice } from './parts.js';
import * as api from './api.js';
import { known } from './known.js';
import { cluster } from './cluster.js';
import { keys } from './keys.js';
import { leases } from './leases.js';
import { locks } from './locks.js';
import { watch } from './watch.js';

const VIEWS = {
  cluster: ['Cluster', cluster], keys: ['Keys', keys], leases: ['Leases', leases],
  locks: ['Locks and elections', locks], watch: ['Watch', watch],
};
const HISTORY = 300;
const at = id => document.getElementById(id);

function hear(message) {
  known.heard = known.leaseAt = performance.now();
  known.problem = null;
  if (message.members) {
    sample(message);
    known.status = message;
  } else if (known.status) known.status.lease = { ...known.status.lease, ...message.lease };
  known.dispatchEvent(new Event(message.members ? 'status' : 'lease'));
}

// What happened a second, from the counts of two messages.
function sample(next) {
  const before = known.samples.at(-1);
  const totals = { reads: {}, revision: next.revision, renewals: next.lease?.renewals, leader: next.leader };
  for (const member of next.members) for (const [path, value] of Object.entries(member.reads || {}))
    totals.reads[`${path} ${member.name}`] = value;
  const now = performance.now();
  const seconds = before ? (now - before.now) / 1000 : 0;
  const paths = { lease: null, read_index: null, follower: null, serializable: null };
  if (seconds > 0.2) for (const path of Object.keys(paths)) {
    paths[path] = 0;
    for (const [name, value] of Object.entries(totals.reads))
      if (name.startsWith(`${path} `)) paths[path] += Math.max(0, value - (before.totals.reads[name] ?? value)) / seconds;
  }
  const isSame = before && seconds > 0.2 && before.totals.leader === totals.leader;
  known.samples.push({ now, totals, ...paths,
    writes: seconds > 0.2 ? Math.max(0, totals.revision - before.totals.revision) / seconds : null,
    renewals: isSame && totals.renewals >= before.totals.renewals ? (totals.renewals - before.totals.renewals) / seconds : null,
    latency: next.latency });
  if (known.samples.length > HISTORY) known.samples.shift();
}

let following = new AbortController();
function follow() {
  following.abort();
  following = new AbortController();
  const { signal } = following;
  api.forever(signal, () => api.stream('/v3/leasehold/status/stream', null, hear, signal), error => {
    known.problem = error;
    known.dispatchEvent(new Event('lost'));
    tell();
    return error.wantsLogin;
  });
}

function tell() {
  const link = at('link');
  const age = performance.now() - known.heard;
  const isLost = known.problem || (known.heard && age > 5000);
  link.classList.toggle('lost', Boolean(isLost));
  const old = known.heard ? `, shown as of ${span(age)} ago` : '';
  let text = known.heard ? `${known.status?.node ?? ''} · live, ${age < 1500 ? 'now' : `${span(age)} ago`}` : 'connecting';
  if (known.problem?.wantsLogin) text = 'not logged in';
  else if (known.problem) text = `Connection lost: ${known.problem.message} Trying again${old}.`;
  else if (isLost) text = `The node is silent${old}.`;
  if (link.textContent !== text) link.textContent = text;
}

function banners() {
  const { status } = known;
  const shown = [];
  if (status && !status.access && !status.loopback) shown.push('Access control is off and this port can be reached from other machines: everybody may do everything here. Add users and enable it with `leasehold auth enable`.');
  if (status && !status.leader) shown.push('No leader is known: writes wait until one is elected.');
  for (const warning of status?.warnings || []) shown.push(warning);
  const text = shown.join('\n');
  if (at('banners').dataset.text === text) return;
  at('banners').dataset.text = text;
  at('banners').replaceChildren(...shown.map(each => el('p', { class: 'banner warn', role: 'status' }, each)));
}

let asking = false;
async function login(why = '') {
  if (asking) return;
  asking = true;
  for (;;) {
    const given = await ask('Log in', why, 'Log in', 'main', [
      { name: 'user', label: 'User', value: api.user, auto: 'username' },
      { name: 'password', label: 'Password', type: 'password', auto: 'current-password' }]);
    if (!given) break;
    try { await api.login(given.user, given.password); break; } catch (error) { why = `That did not work: ${error.message}`; }
  }
  asking = false;
}

function account() {
  const box = at('account');
  box.hidden = !(api.user || known.status?.access || known.problem?.wantsLogin);
  box.textContent = api.user ? `${api.user}: log out` : 'Log in';
}

let leave = null;
function show() {
  leave?.abort();
  leave = new AbortController();
  const [name, ...rest] = location.hash.slice(1).split('/');
  const view = VIEWS[name || 'cluster'];
  at('views').replaceChildren(...Object.entries(VIEWS).map(([id, [title]]) =>
    el('a', { href: `#${id}`, 'aria-current': id === (name || 'cluster') && 'page' }, title)));
  document.title = `${view ? view[0] : 'Not found'} · leasehold`;
  if (view) view[1](at('main'), { signal: leave.signal, rest: rest.map(decode).join('/') });
  else at('main').replaceChildren(notice(`There is no view ${JSON.stringify(decode(name))}: choose one above.`));
}
function decode(text) { try { return decodeURIComponent(text); } catch { return text; } }

at('account').addEventListener('click', () => (api.user ? api.logout() : login()));
api.signal.addEventListener('login', () => login(api.user ? 'The token has ended: log in again.' : 'Access is controlled here.'));
api.signal.addEventListener('account', () => { account(); follow(); show(); });
known.addEventListener('status', () => { account(); banners(); tell(); });
known.addEventListener('lost', account);
addEventListener('hashchange', () => { show(); at('main').focus(); });
setInterval(tell, 500);
follow();
show();
