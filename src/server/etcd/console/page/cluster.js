// The cluster: its lease as it drains and is renewed, its members, and what they do.

import { el, button, ask, ms, rate, count, size, plot, notice, problem, span } from './parts.js';
import { post } from './api.js';
import { known } from './known.js';

const PATHS = ['lease', 'read_index', 'follower', 'serializable'];

export function cluster(main, { signal }) {
  const said = el('div');
  const lease = leasePart(signal);
  const plots = [
    plot('Reads', '/s', ['leader lease', 'quorum', 'follower', 'may be stale'], rate),
    plot('Writes', '/s', ['revisions'], rate),
    plot('Read time here', '', ['p50', 'p99'], ms),
    plot('Write time here', '', ['p50', 'p99'], ms),
  ];
  const members = el('div', { class: 'grid', id: 'members' });
  main.replaceChildren(el('h2', {}, 'Cluster'), said, lease.node, members, el('div', { class: 'grid' }, plots.map(each => each.node)));
  const draw = () => {
    if (!known.status) {
      if (known.problem) said.replaceChildren(notice(problem(known.problem, 'see how the cluster is')));
      return;
    }
    if (said.dataset.kind !== 'done') said.replaceChildren();
    lease.facts();
    drawMembers(members, said);
    const { samples } = known;
    plots[0].update(PATHS.map(path => samples.map(sample => sample[path])));
    plots[1].update([samples.map(sample => sample.writes)]);
    for (const [at, kind] of [[2, 'reads'], [3, 'writes']])
      plots[at].update(['p50_ms', 'p99_ms'].map(name => samples.map(sample => sample.latency?.[kind]?.[name] ?? null)));
  };
  known.addEventListener('status', draw, { signal });
  known.addEventListener('lost', draw, { signal });
  draw();
}

// The bar: what the leader may still rely on, and behind it the margin that it leaves for clocks.
function leasePart(signal) {
  const fill = el('div', { class: 'fill' });
  const margin = el('div', { class: 'margin' });
  const left = el('span', { class: 'big', id: 'left' }, '–');
  const title = el('h3', {}, 'Leader lease');
  const tag = el('span', { class: 'tag', id: 'lease-state' }, 'unknown');
  const track = el('div', { class: 'track', role: 'meter', 'aria-label': 'Time left of the leader lease', 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-valuenow': 0 }, fill, margin);
  const facts = el('div', { class: 'facts' });
  const node = el('section', { class: 'card', id: 'lease' }, el('div', { class: 'head' }, title, tag, el('span', { class: 'right' }, left)), track, facts);
  let said = 0;
  const frame = now => {
    if (signal.aborted) return;
    requestAnimationFrame(frame);
    const { lease } = known.status || {};
    if (!lease) { fill.style.transform = 'scaleX(0)'; margin.style.width = '0'; left.textContent = 'no lease'; return; }
    // It drains by this page's clock until the next message; a renewal refills it.
    const drained = now - known.leaseAt;
    const rest = lease.is_valid ? Math.max(0, lease.remaining_ms - drained) : 0;
    const promise = lease.is_valid ? Math.max(0, lease.remaining_ms + lease.margin_ms - drained) : 0;
    fill.style.transform = `scaleX(${rest / lease.duration_ms})`;
    margin.style.left = `${(rest / lease.duration_ms) * 100}%`;
    margin.style.width = `${((promise - rest) / lease.duration_ms) * 100}%`;
    if (now - said < 120) return;
    said = now;
    left.textContent = rest > 0 ? `${Math.round(rest)} ms left` : 'no valid lease';
    tag.textContent = rest > 0 ? 'valid' : 'not valid';
    tag.className = `tag ${rest > 0 ? 'on' : 'off'}`;
    track.setAttribute('aria-valuenow', Math.round((rest / lease.duration_ms) * 100));
    track.setAttribute('aria-valuetext', left.textContent);
  };
  requestAnimationFrame(frame);
  return {
    node,
    facts() {
      const { lease, leader, fallbacks, node: asked } = known.status;
      title.textContent = leader ? `Leader lease of ${leader}` : 'Leader lease: no leader';
      if (!lease) return;
      const pair = (name, value) => el('span', {}, `${name} `, el('b', {}, value));
      const reasons = Object.entries(fallbacks).filter(([, times]) => times > 0).map(([reason, times]) => `${reason.replace(/_/g, ' ')} ${count(times)}`);
      facts.replaceChildren(
        pair('promised for', ms(lease.duration_ms)), pair('margin (hatched)', ms(lease.margin_ms)),
        pair('renewed', `${rate(known.samples.at(-1)?.renewals)}/s`), pair('longest gap', ms(lease.longest_gap_ms)),
        pair('round trip p99', ms(lease.round_trip?.p99_ms)), pair('expired', count(lease.expirations)),
        pair('reads rejected', count(lease.rejections)), pair(`not served at once by ${asked}`, reasons.join(', ') || '0'));
    },
  };
}

function drawMembers(into, said) {
  const { members, leader } = known.status;
  const held = document.activeElement?.dataset?.target;
  into.replaceChildren(...members.map(member => {
    const leads = member.name === leader;
    const pair = (name, value) => [el('dt', {}, name), el('dd', {}, value)];
    const days = member.certificate_days;
    const certificate = days === null ? '–' : el('span', { class: days < 14 ? 'error' : null }, `${count(days)} days`);
    const head = el('div', { class: 'head' }, el('h3', {}, member.name),
      el('span', { class: `tag ${member.problem ? 'off' : leads ? 'on' : ''}` }, member.problem ? 'silent' : member.role));
    if (member.problem) return el('section', { class: 'card', 'aria-label': member.name }, head, el('p', { class: 'soft' }, `${member.problem}.`), el('dl', {}, pair('certificate', certificate)));
    return el('section', { class: 'card', 'aria-label': member.name }, head,
      el('dl', {}, pair('term', member.term), pair('committed', count(member.commit_index)), pair('applied', count(member.applied_index)),
        pair('lag', `${count(member.lag)} entries`), pair('disk', size(member.storage_bytes)), pair('version', member.version), pair('certificate', certificate)),
      !leads && member.role === 'follower' && leader && el('p', {}, button(`Hand leadership to ${member.name}`, () => handOver(member, said), '', { 'data-target': member.id })));
  }));
  if (held) into.querySelector(`[data-target="${CSS.escape(held)}"]`)?.focus();
}

async function handOver(member, said) {
  const from = known.status.leader;
  const agreed = await ask(`Hand leadership to ${member.name}?`, `${from} stops leading and ${member.name} is elected. Requests wait for that moment; none is lost.`, 'Hand over');
  if (!agreed) return;
  said.dataset.kind = 'done';
  const began = performance.now();
  try {
    await post(`/v3/leasehold/move-leader?target=${member.id}`);
    said.replaceChildren(notice(`${from} has handed leadership to ${member.name} in ${span(performance.now() - began)}.`, 'done'));
  } catch (error) { said.replaceChildren(notice(problem(error, 'hand leadership over (only root may)', true))); }
  setTimeout(() => { said.dataset.kind = ''; }, 8000);
}
