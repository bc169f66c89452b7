// The client etcd3 of npm: keys, ranges, watches, leases, locks, STM, elections, namespaces, snapshots.
// Endpoints are its arguments. `tests/suites/run` starts it.
const { Etcd3, EtcdError } = require('etcd3');
const assert = require('assert');
(async () => {
  const hosts = process.argv.slice(2);
  const c = new Etcd3({hosts});
  await c.delete().all();
  await c.put('foo').value('bar');
  assert.equal(await c.get('foo').string(), 'bar');
  const all = await c.getAll().prefix('f').strings();
  assert.deepEqual(all, {foo:'bar'});
  const w = await c.watch().prefix('w/').create();
  const got = []; w.on('put', r => got.push('p'+r.key)); w.on('delete', r => got.push('d'+r.key));
  await c.put('w/1').value('x'); await c.delete().key('w/1');
  for (let i=0;i<50 && got.length<2;i++) await new Promise(r=>setTimeout(r,50));
  assert.deepEqual(got, ['pw/1','dw/1']); await w.cancel();
  const lease = c.lease(5); await lease.put('l/1').value('v');
  await lease.keepaliveOnce();
  assert.equal((await lease.leaseID?.call?.(lease), await c.get('l/1').string()), 'v');
  await lease.revoke(); assert.equal(await c.get('l/1'), null);
  const lock = c.lock('mine'); await lock.acquire();
  let failed=false; try { await c.lock('mine').acquire(); } catch(e){ failed=true; }
  assert(failed); await lock.release();
  await c.put('n').value('1');
  await Promise.all([1,2,3,4,5].map(()=>c.stm({retries:30}).transact(async tx => { const v = await tx.get('n').number(); await tx.put('n').value(v+1); })));
  assert.equal(await c.get('n').number(), 6);
  const e = c.election('el', 5); const camp = e.campaign('me');
  await new Promise((res,rej)=>{camp.on('elected',res); camp.on('error',rej);});
  assert.equal(await e.leader(), 'me'); await camp.resign();
  const ns = c.namespace('ns/'); await ns.put('a').value('1'); assert.equal(await c.get('ns/a').string(),'1');
  const r = await c.if('foo','Value','==','bar').then(c.put('foo').value('baz')).else(c.get('foo')).commit(); assert(r.succeeded);
  const st = await c.maintenance.status(); console.log('version', st.version);
  const snap = await c.maintenance.snapshot(); 
  const bytes = await new Promise((res,rej)=>{let n=0; snap.on('data',d=>n+=d.blob.length); snap.on('end',()=>res(n)); snap.on('error',rej)});
  console.log('snapshot', bytes);
  c.close(); console.log('ok');
})().catch(e=>{console.error(e);process.exit(1)});
