// Package main uses go-redis as applications do: transactions with WATCH and retries, pipelines,
// scripts, messages, streams, users.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	routines = 8
	turns    = 50
	waitMax  = 20 * time.Second
)

var ctx = context.Background()

func client(protocol int) *redis.Client {
	return redis.NewClient(options(protocol))
}

func options(protocol int) *redis.Options {
	address := "127.0.0.1:" + os.Getenv("PANTALA_PORT")
	return &redis.Options{Addr: address, Protocol: protocol, TLSConfig: certificates()}
}

// certificates returns the TLS configuration of an encrypted port, and nil for a plain port.
func certificates() *tls.Config {
	authority := os.Getenv("PANTALA_TLS_CA")
	if authority == "" {
		return nil
	}
	text, err := os.ReadFile(authority)
	ok(err)
	roots := x509.NewCertPool()
	must(roots.AppendCertsFromPEM(text), "no certificate in %s", authority)
	own, err := tls.LoadX509KeyPair(os.Getenv("PANTALA_TLS_CERT"), os.Getenv("PANTALA_TLS_KEY"))
	ok(err)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}}
}

// must fails the check with this message if the condition is false.
func must(holds bool, format string, args ...any) {
	if !holds {
		panic(fmt.Sprintf(format, args...))
	}
}

func ok(err error) {
	must(err == nil, "%v", err)
}

// together runs body in goroutines, each with its own client.
func together(body func(number int, own *redis.Client) error) {
	var group sync.WaitGroup
	failed := make(chan error, routines)
	for number := range routines {
		group.Add(1)
		go func() {
			defer group.Done()
			own := client(3)
			defer own.Close()
			if err := body(number, own); err != nil {
				failed <- err
			}
		}()
	}
	group.Wait()
	close(failed)
	ok(<-failed)
}

// watchRetries moves amounts between accounts. A writer whose transaction conflicts with another
// one retries.
func watchRetries(rdb *redis.Client) {
	const accounts = 16
	account := func(number int) string { return "account:" + strconv.Itoa(number%accounts) }
	for number := range accounts {
		ok(rdb.Set(ctx, account(number), 100, 0).Err())
	}
	together(func(number int, own *redis.Client) error {
		for turn := range turns {
			source, target := account(turn), account(turn+1+number)
			if source == target {
				continue
			}
			move := func(tx *redis.Tx) error {
				have, err := tx.Get(ctx, source).Int()
				if err != nil {
					return err
				}
				_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
					pipe.Set(ctx, source, have-1, 0)
					pipe.Incr(ctx, target)
					return nil
				})
				return err
			}
			for {
				err := own.Watch(ctx, move, source)
				if err == nil {
					break
				}
				if !errors.Is(err, redis.TxFailedErr) {
					return err
				}
			}
		}
		return nil
	})
	sum := 0
	for number := range accounts {
		value, err := rdb.Get(ctx, account(number)).Int()
		ok(err)
		sum += value
	}
	must(sum == accounts*100, "the accounts hold %d", sum)
	// By chance, the writers above may never conflict. This transaction always conflicts.
	err := rdb.Watch(ctx, func(tx *redis.Tx) error {
		ok(client(3).Incr(ctx, account(0)).Err())
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			return pipe.Set(ctx, account(0), "lost", 0).Err()
		})
		return err
	}, account(0))
	must(errors.Is(err, redis.TxFailedErr), "a transaction ran over a change that it watched for: %v", err)
}

// transactionsAreWhole checks isolation: readers compare two keys that are always written together.
func transactionsAreWhole(rdb *redis.Client) {
	ok(rdb.MSet(ctx, "left", 0, "right", 0).Err())
	together(func(number int, own *redis.Client) error {
		for turn := range turns * 4 {
			if number%2 == 0 {
				_, err := own.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
					value := number*10_000 + turn
					pipe.Set(ctx, "left", value, 0)
					pipe.LPush(ctx, "between", value)
					pipe.Set(ctx, "right", value, 0)
					return nil
				})
				if err != nil {
					return err
				}
				continue
			}
			values, err := own.MGet(ctx, "left", "right").Result()
			if err != nil {
				return err
			}
			if values[0] != values[1] {
				return fmt.Errorf("half a transaction: %v", values)
			}
		}
		return nil
	})
	count, err := rdb.LLen(ctx, "between").Result()
	ok(err)
	must(count == routines/2*turns*4, "%d elements", count)
}

func pipelines(rdb *redis.Client) {
	answers, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for number := range 5000 {
			pipe.Set(ctx, fmt.Sprintf("key:%d", number), number, time.Hour)
			pipe.Get(ctx, fmt.Sprintf("key:%d", number))
		}
		return nil
	})
	ok(err)
	for number := range 5000 {
		value, err := answers[2*number+1].(*redis.StringCmd).Int()
		must(err == nil && value == number, "key:%d is %d, %v", number, value, err)
	}
	ttl, err := rdb.TTL(ctx, "key:7").Result()
	must(err == nil && ttl > 59*time.Minute, "%v, %v", ttl, err)
	count := 0
	walk := rdb.Scan(ctx, 0, "key:*", 1000).Iterator()
	seen := map[string]bool{}
	for walk.Next(ctx) {
		seen[walk.Val()] = true
		count++
	}
	must(walk.Err() == nil && len(seen) == 5000, "%d keys in %d answers", len(seen), count)
}

func scripts(rdb *redis.Client) {
	ok(rdb.ScriptFlush(ctx).Err())
	limit := redis.NewScript(`
		local key = 'made:' .. ARGV[1]
		local now = redis.call('INCR', key)
		if now == 1 then redis.call('PEXPIRE', key, 60000) end
		redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
		return now`)
	together(func(number int, own *redis.Client) error {
		for range turns {
			if _, err := limit.Run(ctx, own, []string{"calls"}, "shared").Int(); err != nil {
				return err
			}
		}
		return nil
	})
	made, err := rdb.Get(ctx, "made:shared").Int()
	ok(err)
	calls, err := rdb.HGet(ctx, "calls", "shared").Int()
	ok(err)
	must(made == routines*turns && calls == made, "%d and %d calls", made, calls)
	_, err = limit.RunRO(ctx, rdb, []string{"calls"}, "shared").Result()
	must(err != nil, "a script that writes ran read-only")
	answer, err := rdb.Eval(ctx, `return {1, 'two', false, {3, {err = 'My error'}}}`, nil).Slice()
	ok(err)
	must(len(answer) == 4 && answer[0] == int64(1) && answer[1] == "two" && answer[2] == nil, "%v", answer)
}

func messages(rdb *redis.Client) {
	for _, protocol := range []int{2, 3} {
		own := client(protocol)
		subscription := own.Subscribe(ctx, "news")
		ok(subscription.PSubscribe(ctx, "ne?s"))
		for range 2 {
			_, err := subscription.Receive(ctx)
			ok(err)
		}
		for number := range 200 {
			got, err := rdb.Publish(ctx, "news", number).Result()
			must(err == nil && got == 2, "%d got it, %v", got, err)
		}
		next := map[string]int{}
		heard := subscription.Channel()
		for range 400 {
			select {
			case message := <-heard:
				must(message.Payload == strconv.Itoa(next[message.Pattern]), "%v out of order", message)
				next[message.Pattern]++
			case <-time.After(waitMax):
				panic("a message is missing")
			}
		}
		ok(subscription.Close())
		own.Close()
	}
	sharded := rdb.SSubscribe(ctx, "{shard}:news")
	_, err := sharded.Receive(ctx)
	ok(err)
	got, err := rdb.SPublish(ctx, "{shard}:news", "hello").Result()
	must(err == nil && got == 1, "%d got it, %v", got, err)
	message, err := sharded.ReceiveMessage(ctx)
	must(err == nil && message.Payload == "hello", "%v, %v", message, err)
	ok(sharded.Close())
}

func streams(rdb *redis.Client) {
	ok(rdb.XGroupCreateMkStream(ctx, "stream", "readers", "0").Err())
	const entries = 400
	var seen sync.Map
	var read atomic.Int64
	together(func(number int, own *redis.Client) error {
		if number == 0 {
			for entry := range entries {
				values := map[string]any{"n": entry}
				if err := own.XAdd(ctx, &redis.XAddArgs{Stream: "stream", Values: values}).Err(); err != nil {
					return err
				}
			}
			return nil
		}
		for read.Load() < entries {
			args := redis.XReadGroupArgs{
				Group: "readers", Consumer: strconv.Itoa(number), Streams: []string{"stream", ">"},
				Count: 10, Block: 100 * time.Millisecond,
			}
			got, err := own.XReadGroup(ctx, &args).Result()
			if errors.Is(err, redis.Nil) {
				continue
			}
			if err != nil {
				return err
			}
			for _, entry := range got[0].Messages {
				if _, twice := seen.LoadOrStore(entry.Values["n"], true); twice {
					return fmt.Errorf("%v came twice", entry.Values)
				}
				read.Add(1)
				if err := own.XAck(ctx, "stream", "readers", entry.ID).Err(); err != nil {
					return err
				}
			}
		}
		return nil
	})
	pending, err := rdb.XPending(ctx, "stream", "readers").Result()
	must(err == nil && pending.Count == 0, "%v, %v", pending, err)
}

// run runs a check, and exits with 1 if it fails.
func run(name string, check func()) {
	start := time.Now()
	defer func() {
		if why := recover(); why != nil {
			fmt.Fprintf(os.Stderr, "FAILED %s: %v\n", name, why)
			os.Exit(1)
		}
		fmt.Printf("ok %s (%d ms)\n", name, time.Since(start).Milliseconds())
	}()
	check()
}

func main() {
	if os.Getenv("PANTALA_SENTINEL_PORT") != "" {
		run("writers survive failovers", writersSurviveFailovers)
		return
	}
	rdb := client(3)
	ok(rdb.FlushAll(ctx).Err())
	for _, check := range []struct {
		name string
		run  func(*redis.Client)
	}{
		{"WATCH and retries lose nothing", watchRetries},
		{"transactions are seen whole", transactionsAreWhole},
		{"pipelines and a scan", pipelines},
		{"scripts, with keys that they make up", scripts},
		{"messages in order, RESP2 and RESP3", messages},
		{"a stream read by a group", streams},
		{"rules of a user", forBothProtocols(rules)},
		{"lists of users, categories and help", forBothProtocols(listings)},
		{"permissions tried without running", forBothProtocols(dryRuns)},
		{"logins and denials", forBothProtocols(logins)},
		{"the log of denials", forBothProtocols(denials)},
		{"users saved and loaded", forBothProtocols(file)},
		{"names of users that are not text", forBothProtocols(binaryNames)},
	} {
		run(check.name, func() { check.run(rdb) })
	}
}
