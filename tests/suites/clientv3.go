// etcd's own client for Go, with what is built on it: sessions, mutexes, elections, STM, namespaces, leasing,
// mirrors. Endpoints are its arguments. `tests/suites/run` starts it.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
	"go.etcd.io/etcd/clientv3/leasing"
	"go.etcd.io/etcd/clientv3/mirror"
	"go.etcd.io/etcd/clientv3/namespace"
)

func must(err error) {
	if err != nil {
		_, _, line, _ := runtime.Caller(1); fmt.Println("FAILED:", line, err)
		os.Exit(1)
	}
}

func main() {
	ends := os.Args[1:]
	c, err := clientv3.New(clientv3.Config{Endpoints: ends, DialTimeout: 5 * time.Second})
	must(err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	_, err = c.Delete(ctx, "go/", clientv3.WithPrefix())
	must(err)
	// sessions, mutex, election
	s1, err := concurrency.NewSession(c, concurrency.WithTTL(5))
	must(err)
	s2, err := concurrency.NewSession(c, concurrency.WithTTL(5))
	must(err)
	m1 := concurrency.NewMutex(s1, "go/lock")
	m2 := concurrency.NewMutex(s2, "go/lock")
	must(m1.Lock(ctx))
	done := make(chan error)
	go func() { done <- m2.Lock(ctx) }()
	select {
	case <-done:
		fmt.Println("FAILED: two holders")
		os.Exit(1)
	case <-time.After(500 * time.Millisecond):
	}
	must(m1.Unlock(ctx))
	must(<-done)
	must(m2.Unlock(ctx))
	e1 := concurrency.NewElection(s1, "go/el")
	must(e1.Campaign(ctx, "one"))
	e2 := concurrency.NewElection(s2, "go/el")
	obs := e2.Observe(ctx)
	r := <-obs
	if string(r.Kvs[0].Value) != "one" {
		panic("leader")
	}
	must(e1.Proclaim(ctx, "uno"))
	r = <-obs
	if string(r.Kvs[0].Value) != "uno" {
		panic("proclaim")
	}
	must(e1.Resign(ctx))
	must(e2.Campaign(ctx, "two"))
	must(s1.Close())
	must(s2.Close())
	// STM
	_, err = c.Put(ctx, "go/n", "0")
	must(err)
	errs := make(chan error)
	for i := 0; i < 8; i++ {
		go func() {
			_, err := concurrency.NewSTM(c, func(stm concurrency.STM) error {
				var n int
				fmt.Sscan(stm.Get("go/n"), &n)
				stm.Put("go/n", fmt.Sprint(n+1))
				return nil
			})
			errs <- err
		}()
	}
	for i := 0; i < 8; i++ {
		must(<-errs)
	}
	g, err := c.Get(ctx, "go/n")
	must(err)
	if string(g.Kvs[0].Value) != "8" {
		panic("stm " + string(g.Kvs[0].Value))
	}
	// namespace, leasing
	ns := namespace.NewKV(c.KV, "go/ns/")
	_, err = ns.Put(ctx, "a", "1")
	must(err)
	lkv, closeLKV, err := leasing.NewKV(c, "go/leasing/")
	must(err)
	_, err = lkv.Put(ctx, "go/cached", "x")
	must(err)
	for i := 0; i < 3; i++ {
		_, err = lkv.Get(ctx, "go/cached")
		must(err)
	}
	_, err = c.Txn(ctx).Then(clientv3.OpPut("go/cached2", "y")).Commit()
	must(err)
	closeLKV()
	// mirror
	sy := mirror.NewSyncer(c, "go/", 0)
	gc, ec := sy.SyncBase(ctx)
	n := 0
	for r := range gc {
		n += len(r.Kvs)
	}
	must(<-ec)
	wctx, wcancel := context.WithCancel(ctx)
	wc := sy.SyncUpdates(wctx)
	_, err = c.Put(ctx, "go/m", "later")
	must(err)
	wr := <-wc
	must(wr.Err())
	wcancel()
	// member list, sync, status, maintenance
	must(c.Sync(ctx))
	ml, err := c.MemberList(ctx)
	must(err)
	for _, ep := range c.Endpoints() {
		_, err := c.Status(ctx, ep)
		must(err)
	}
	// keep alive, compaction error
	l, err := c.Grant(ctx, 5)
	must(err)
	ka, err := c.KeepAlive(ctx, l.ID)
	must(err)
	<-ka
	p, err := c.Put(ctx, "go/x", "1")
	must(err)
	_, err = c.Compact(ctx, p.Header.Revision, clientv3.WithCompactPhysical())
	must(err)
	_, err = c.Get(ctx, "go/x", clientv3.WithRev(1))
	fmt.Println("compacted:", err)
	w := <-c.Watch(ctx, "go/x", clientv3.WithRev(1))
	fmt.Println("watch:", w.CompactRevision == p.Header.Revision, w.Err())
	fmt.Println("ok", n, len(ml.Members))
}
