package main

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// pair is the name that Sentinel has for the primary.
const pair = "pair"

// A writer increments a counter, and records the largest value that the replica has acknowledged.
type writer struct {
	key       string
	confirmed atomic.Int64
}

func (w *writer) run(primary *redis.Client, over *atomic.Bool) {
	for !over.Load() {
		// A pipeline uses one connection, as WAIT requires.
		pipe := primary.Pipeline()
		value := pipe.Incr(ctx, w.key)
		replicas := pipe.Do(ctx, "WAIT", 1, 200)
		if _, err := pipe.Exec(ctx); err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if count, err := replicas.Int(); err == nil && count >= 1 {
			w.confirmed.Store(value.Val())
		}
	}
}

// until waits until the condition holds.
func until(what string, condition func() bool) {
	for end := time.Now().Add(waitMax); !condition(); time.Sleep(10 * time.Millisecond) {
		must(time.Now().Before(end), "%s did not happen", what)
	}
}

// writersSurviveFailovers uses the failover client of go-redis while Sentinel moves the role of the
// primary, and while the primary dies. No write that WAIT confirmed is lost.
func writersSurviveFailovers() {
	address := "127.0.0.1:" + os.Getenv("PANTALA_SENTINEL_PORT")
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: address})
	primary := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: pair, SentinelAddrs: []string{address}, ReadTimeout: time.Second, DialTimeout: time.Second,
	})
	writers := make([]*writer, 4)
	var over atomic.Bool
	var running sync.WaitGroup
	for number := range writers {
		w := &writer{key: fmt.Sprintf("go:%d", number)}
		writers[number] = w
		running.Add(1)
		go func() {
			defer running.Done()
			w.run(primary, &over)
		}()
	}
	current := func() string {
		at, err := sentinel.GetMasterAddrByName(ctx, pair).Result()
		if err != nil || len(at) < 2 {
			return ""
		}
		return at[1]
	}
	failOver := func(change func()) {
		for _, w := range writers {
			past := w.confirmed.Load()
			until("a confirmed write", func() bool { return w.confirmed.Load() > past })
		}
		before := current()
		change()
		until("another primary", func() bool { return current() != "" && current() != before })
		until("a write", func() bool { return primary.Set(ctx, "after", before, 0).Err() == nil })
	}
	failOver(func() {
		// Sentinel rejects a failover until it has seen that the replica's link is up, which takes up to
		// 10 s.
		until("a start", func() bool { return sentinel.Failover(ctx, pair).Err() == nil })
	})
	failOver(func() {
		var pid int
		info, err := primary.InfoMap(ctx, "server").Result()
		ok(err)
		_, err = fmt.Sscan(info["Server"]["process_id"], &pid)
		ok(err)
		ok(syscall.Kill(pid, syscall.SIGKILL))
	})
	over.Store(true)
	running.Wait()
	for _, w := range writers {
		kept, err := primary.Get(ctx, w.key).Int64()
		must(err == nil || errors.Is(err, redis.Nil), "%v", err)
		must(kept >= w.confirmed.Load(), "%s: %d was confirmed, %d is left", w.key, w.confirmed.Load(), kept)
	}
}
