// What all views are made of.

export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'class') node.className = value;
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return node;
}
export const button = (text, onclick, kind = '', more = {}) => el('button', { type: 'button', class: kind || null, onclick, ...more }, text);

export const count = number => Math.round(number).toLocaleString('en');
export const rate = number => (number === null || number === undefined ? '–' : number < 10 && number > 0 ? number.toFixed(1) : count(number));
export const ms = number => (number === null || number === undefined ? '–' : number < 10 ? `${number.toFixed(number < 1 ? 2 : 1)} ms` : `${count(number)} ms`);
export function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let at = 0;
  for (; bytes >= 1024 && at < 4; at++) bytes /= 1024;
  return `${at && bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)} ${units[at]}`;
}
export function span(milliseconds) {
  const seconds = milliseconds / 1000;
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

// Bytes as text; nothing if they are none.
export function asText(bytes) {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes, char => char.charCodeAt(0)));
  } catch { return null; }
}
export function asHex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = bytes.slice(at, at + 16);
    const hex = Array.from(row, char => char.charCodeAt(0).toString(16).padStart(2, '0')).join(' ');
    lines.push(`${at.toString(16).padStart(6, '0')}  ${hex.padEnd(47)}  ${row.replace(/[^ -~]/g, '.')}`);
  }
  return lines.join('\n');
}

// Controls, marks of direction and what has no width would show something else than is there.
const HIDDEN = /([\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb])/u;
function marked(text, keepsLines) {
  return text.split(HIDDEN).filter(part => part !== '').map(part => {
    if (!HIDDEN.test(part)) return keepsLines ? part : part.replace(/[\n\t]/g, '␤');
    return el('span', { class: 'esc' }, `U+${part.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}`);
  });
}
// What stands for bytes of any kind.
export function shown(bytes, keepsLines = false) {
  const text = asText(bytes);
  if (text !== null) return marked(text, keepsLines);
  const parts = bytes.split(/([^ -~]+)/).filter(part => part !== '');
  return parts.map(part => (/^[ -~]/.test(part) ? part
    : el('span', { class: 'esc' }, Array.from(part, char => `\\x${char.charCodeAt(0).toString(16).padStart(2, '0')}`).join(''))));
}
export const named = bytes => el('span', { class: 'key mono cut' }, shown(bytes));

// Asks, and gives the fields of the form; nothing if it was given up.
export function ask(title, text, action, kind = 'main', fields = []) {
  return new Promise(done => {
    const inputs = fields.map(({ name, label, type = 'text', value = '', rows, auto }) => {
      const input = rows ? el('textarea', { name, rows }) : el('input', { name, type, autocomplete: auto });
      input.value = value;
      return el('label', {}, label, input);
    });
    const form = el('form', { method: 'dialog' }, el('h2', { id: 'asked' }, title), text && el('p', {}, text), inputs,
      el('div', { class: 'head' }, button('Cancel', () => dialog.close()), el('button', { class: kind, value: 'yes' }, action)));
    const dialog = el('dialog', { 'aria-labelledby': 'asked' }, form);
    dialog.addEventListener('close', () => {
      dialog.remove();
      done(dialog.returnValue === 'yes' ? Object.fromEntries(new FormData(form)) : null);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export const notice = (text, kind = 'error') => el('p', { class: `notice ${kind}`, role: kind === 'error' ? 'alert' : 'status' }, text);

// Says what kept a view from showing something, and what to do. After a change (`isChange`) it is not always known
// whether it was made.
export function problem(error, what, isChange) {
  if (isChange && error.isUnanswered) return 'The node did not answer, so it is not known whether it did this. Look before you ask for it again.';
  if (error.isDenied) return `You may not ${what}. A role of yours needs the permission for it; an administrator gives it with \`leasehold role grant-permission\`.`;
  if (error.wantsLogin) return 'Access is controlled here: log in to go on.';
  return error.message;
}

// The old element with the attributes and the content of the new one; the new one if there is no old one, and if it
// flashes: an animation begins with its element, and a change after a change has to be seen.
function drawnAnew(old, row) {
  if (!old || row.classList.contains('flash')) return row;
  for (const name of old.getAttributeNames()) if (!row.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of row.attributes) if (name !== 'style' && old.getAttribute(name) !== value) old.setAttribute(name, value);
  // As an attribute the policy of this page would forbid it.
  old.style.cssText = row.style.cssText;
  old.replaceChildren(...row.childNodes);
  return old;
}

// A list of any length, of which only those rows exist that can be seen. A row stays the same element as long as it shows
// the same item, by its name: what was found or pressed is then still that row when it has been drawn again.
export class Rows {
  constructor({ label, height = 28, role = 'listbox', row, name = item => item, chosen, key, more }) {
    Object.assign(this, { height, row, name, more, chosen, key, items: [], shown: new Map(), at: 0, id: `r${Math.random().toString(36).slice(2)}`, itemRole: role === 'tree' ? 'treeitem' : 'option' });
    this.space = el('div', { role: 'none' });
    this.node = el('div', { class: 'list', role, tabindex: 0, 'aria-label': label,
      onscroll: () => this.draw(), onkeydown: event => this.typed(event),
      onclick: event => {
        // A row that was painted again while it was pressed is another one: then the place says which it was.
        const top = this.node.getBoundingClientRect().top + this.node.clientTop - this.node.scrollTop;
        const place = +(event.target.closest('.row')?.dataset.place ?? Math.floor((event.clientY - top) / this.height));
        if (place >= 0 && place < this.items.length) { this.at = place; this.chosen?.(this.items[place], place); this.draw(); }
      } }, this.space);
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.node);
  }
  set(items) {
    this.items = items;
    this.at = Math.max(0, Math.min(this.at, items.length - 1));
    this.draw();
  }
  draw() {
    if (this.due) return;
    this.due = requestAnimationFrame(() => { this.due = 0; this.paint(); });
  }
  paint() {
    const { height, items } = this;
    this.space.style.height = `${items.length * height}px`;
    const first = Math.max(0, Math.floor(this.node.scrollTop / height) - 4);
    const last = Math.min(items.length, Math.ceil((this.node.scrollTop + this.node.clientHeight) / height) + 4);
    const shown = new Map();
    for (let place = first; place < last; place++) {
      const row = this.row(items[place], place);
      row.classList.add('row');
      row.classList.toggle('at', place === this.at);
      row.dataset.place = place;
      row.id = `${this.id}-${place}`;
      if (!row.hasAttribute('role')) row.setAttribute('role', this.itemRole);
      if (!row.hasAttribute('aria-selected')) row.setAttribute('aria-selected', row.classList.contains('chosen'));
      row.setAttribute('aria-posinset', place + 1);
      row.setAttribute('aria-setsize', items.length);
      row.style.height = `${height}px`;
      row.style.transform = `translateY(${place * height}px)`;
      const name = this.name(items[place]);
      shown.set(name, drawnAnew(this.shown.get(name), row));
    }
    this.shown = shown;
    const rows = [...shown.values()];
    if (rows.length !== this.space.children.length || rows.some((row, place) => row !== this.space.children[place])) this.space.replaceChildren(...rows);
    if (this.at >= first && this.at < last) this.node.setAttribute('aria-activedescendant', `${this.id}-${this.at}`);
    else this.node.removeAttribute('aria-activedescendant');
    if (last >= items.length - 40) this.more?.(last);
  }
  typed(event) {
    const page = Math.max(1, Math.floor(this.node.clientHeight / this.height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) {
      this.at = Math.max(0, Math.min(this.items.length - 1, this.at + steps[event.key]));
      const top = this.at * this.height;
      if (top < this.node.scrollTop) this.node.scrollTop = top;
      if (top + this.height > this.node.scrollTop + this.node.clientHeight) this.node.scrollTop = top + this.height - this.node.clientHeight;
    } else if (event.key === 'Enter' || event.key === ' ') this.chosen?.(this.items[this.at], this.at);
    else if (!this.key?.(event, this.items[this.at], this.at)) return;
    event.preventDefault();
    this.draw();
  }
}

// Lines that differ between two texts, by the longest common part of what is between equal ends.
export function difference(before, after) {
  const [a, b] = [before.split('\n'), after.split('\n')];
  let from = 0;
  while (from < a.length && from < b.length && a[from] === b[from]) from++;
  let until = 0;
  while (until < a.length - from && until < b.length - from && a[a.length - 1 - until] === b[b.length - 1 - until]) until++;
  const [x, y] = [a.slice(from, a.length - until), b.slice(from, b.length - until)];
  const line = kind => text => el('span', { class: kind }, marked(text, true));
  const out = a.slice(Math.max(0, from - 3), from).map(line('same'));
  if (x.length * y.length > 1e6) out.push(...x.map(line('del')), ...y.map(line('add')));
  else {
    const table = Array.from({ length: x.length + 1 }, () => new Uint32Array(y.length + 1));
    for (let i = x.length - 1; i >= 0; i--) for (let j = y.length - 1; j >= 0; j--)
      table[i][j] = x[i] === y[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    for (let i = 0, j = 0; i < x.length || j < y.length;) {
      if (i < x.length && j < y.length && x[i] === y[j]) { out.push(line('same')(x[i])); i++; j++; }
      else if (j >= y.length || (i < x.length && table[i + 1][j] >= table[i][j + 1])) out.push(line('del')(x[i++]));
      else out.push(line('add')(y[j++]));
    }
  }
  out.push(...a.slice(a.length - until, a.length - until + 3).map(line('same')));
  return out;
}

// A small plot; `update` takes one series of numbers (or nulls) per line.
export function plot(title, unit, names, format) {
  const svgOf = (tag, attributes) => {
    const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  const svg = svgOf('svg', { viewBox: '0 0 300 64', preserveAspectRatio: 'none', 'aria-hidden': 'true' });
  const lines = names.map((_, at) => svg.appendChild(svgOf('path', { class: `l${at}` })));
  const values = names.map(() => el('b', {}, '–'));
  const most = el('span', { class: 'soft right num' });
  const node = el('section', { class: 'card plot' }, el('div', { class: 'head' }, el('h3', {}, title), most), svg,
    el('div', { class: 'legend' }, names.map((name, at) => el('span', { class: `k${at}` }, `${name} `, values[at]))));
  const update = series => {
    const top = Math.max(1e-9, ...series.flat().filter(value => value !== null));
    most.textContent = top > 1e-9 ? `${format(top)}${unit} at most` : 'last 5 min';
    series.forEach((numbers, at) => {
      let path = '';
      let pen = 'M';
      numbers.forEach((value, place) => {
        if (value === null) { pen = 'M'; return; }
        path += `${pen}${(300 - numbers.length + place).toFixed(0)} ${(62 - (value / top) * 60).toFixed(1)}`;
        pen = 'L';
      });
      lines[at].setAttribute('d', path);
      values[at].textContent = numbers.length ? format(numbers.at(-1)) : '–';
    });
  };
  return { node, update };
}
