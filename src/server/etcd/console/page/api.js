// The one place that speaks to the node: etcd's methods as JSON, and leasehold's own paths. Keys and values are
// strings of bytes (one character each) here, and base64 on the wire.

let token = '';
export let user = '';

export class Refused extends Error {
  constructor(message, code, http) {
    super(message);
    this.code = code;
    this.http = http;
  }
  // It may have done what it was asked for all the same.
  get isUnanswered() { return this.http === 0; }
  // Whether logging in would help.
  get wantsLogin() { return this.code === 16 || /user name is empty|invalid auth token/.test(this.message); }
  get isDenied() { return this.code === 7; }
}

export const signal = new EventTarget();

const head = () => (token ? { authorization: token } : {});

async function answered(response) {
  let body = {};
  try { body = await response.json(); } catch { /* what follows says enough */ }
  if (response.ok) return body;
  throw failure(body, response.status);
}

function failure(body, http) {
  const error = typeof body.error === 'object' ? body.error : body;
  const refused = new Refused(error.message || `the node answered with ${http}`, error.code ?? error.grpc_code, http);
  if (refused.wantsLogin) signal.dispatchEvent(new Event('login'));
  return refused;
}

async function send(path, options) {
  try {
    return await fetch(path, { ...options, headers: head(), credentials: 'omit', cache: 'no-store' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Refused('The node does not answer.', 14, 0);
  }
}

export const get = async (path, abort) => answered(await send(path, { signal: abort }));
export const post = async (path, body = {}, abort) =>
  answered(await send(path, { method: 'POST', body: JSON.stringify(body), signal: abort }));

// Reads a stream to its end; `each` gets every message.
export async function stream(path, body, each, abort) {
  const response = await send(path, body ? { method: 'POST', body: JSON.stringify(body), signal: abort } : { signal: abort });
  if (!response.ok) await answered(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  for (;;) {
    let chunk;
    try { chunk = await reader.read(); } catch (error) {
      if (abort.aborted) throw error;
      throw new Refused('The connection was lost.', 14, 0);
    }
    if (chunk.done) throw new Refused('The node ended the connection.', 14, 0);
    let text = chunk.value;
    for (let end; (end = text.indexOf('\n')) >= 0; text = text.slice(end + 1)) {
      parts.push(text.slice(0, end));
      const message = JSON.parse(parts.join(''));
      parts = [];
      if (message.error) throw failure(message, message.error.http_code);
      each(message.result);
    }
    parts.push(text);
  }
}

// Watches; a watch that is refused ends it, as one of etcd's does not.
export const changes = (wanted, each, abort) => stream('/v3/watch', { create_request: wanted }, message => {
  if (message.canceled && !message.compact_revision) throw new Refused(message.cancel_reason || 'The watch was ended.', /permission denied/.test(message.cancel_reason) ? 7 : /auth token/.test(message.cancel_reason) ? 16 : 14, 0);
  each(message);
}, abort);

// A stream that comes back by itself, until `abort` says so. `lost` is told why it is gone; true from it ends it.
export async function forever(abort, run, lost) {
  for (let pause = 250; !abort.aborted; pause = Math.min(pause * 2, 4000)) {
    const began = Date.now();
    try { await run(); } catch (error) {
      if (abort.aborted) return;
      if (lost(error)) return;
    }
    if (Date.now() - began > 5000) pause = 250;
    await new Promise(done => setTimeout(done, pause));
  }
}

export async function login(name, password) {
  const answer = await post('/v3/auth/authenticate', { name, password });
  token = answer.token;
  user = name;
  signal.dispatchEvent(new Event('account'));
}

export function logout() {
  token = user = '';
  signal.dispatchEvent(new Event('account'));
}

export const fromWire = text => atob(text || '');
export const toWire = bytes => btoa(bytes);
export const toBytes = text => Array.from(new TextEncoder().encode(text), byte => String.fromCharCode(byte)).join('');

// The end of the range of all keys with this prefix.
export function prefixEnd(prefix) {
  for (let at = prefix.length; at-- > 0;) {
    const byte = prefix.charCodeAt(at);
    if (byte < 255) return prefix.slice(0, at) + String.fromCharCode(byte + 1);
  }
  return '\0';
}
export const rangeOf = prefix => ({ key: toWire(prefix || '\0'), range_end: toWire(prefixEnd(prefix)) });

export function record(kv) {
  return {
    key: fromWire(kv.key), value: fromWire(kv.value), lease: kv.lease || '0', version: +(kv.version || 0),
    create: +(kv.create_revision || 0), mod: +(kv.mod_revision || 0),
  };
}

// The prefixes that the user may read; none where everything may be read, or where that is not known.
export async function readable() {
  const asked = await post('/v3/auth/user/get', { name: user });
  const prefixes = [];
  for (const role of asked.roles || []) {
    if (role === 'root') return [];
    const { perm = [] } = await post('/v3/auth/role/get', { role });
    for (const each of perm) if (each.permType !== 'WRITE') prefixes.push(fromWire(each.key));
  }
  return prefixes;
}
