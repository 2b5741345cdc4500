package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

const (
	user     = "library"
	password = "a password"
	// A name that is not UTF-8.
	binaryUser = "\xff\xfe\x01library"
)

// forBothProtocols runs a check of users with RESP2 and RESP3. The user doesn't exist when a run
// starts.
func forBothProtocols(check func(protocol int, admin *redis.Client)) func(*redis.Client) {
	return func(*redis.Client) {
		for _, protocol := range []int{2, 3} {
			admin := client(protocol)
			ok(admin.ACLDelUser(ctx, user).Err())
			check(protocol, admin)
			ok(admin.ACLDelUser(ctx, user).Err())
			admin.Close()
		}
	}
}

// as returns a client that logs in with this name and password.
func as(protocol int, name, word string) *redis.Client {
	options := options(protocol)
	options.Username, options.Password = name, word
	// Without this setting, go-redis would repeat a failed login.
	options.MaxRetries = -1
	return redis.NewClient(options)
}

func setUser(admin *redis.Client, name string, rules ...string) {
	answer, err := admin.ACLSetUser(ctx, name, rules...).Result()
	must(err == nil && answer == "OK", "%s, %v", answer, err)
}

// denied checks that an error is go-redis's error for NOPERM.
func denied(err error, part string) {
	isDenial := redis.IsPermissionError(err) && strings.Contains(err.Error(), part)
	must(isDenial, "no denial with %s: %v", part, err)
}

func refused(err error) {
	must(redis.IsAuthError(err) && strings.HasPrefix(err.Error(), "WRONGPASS "), "a login: %v", err)
}

func rejected(err error, part string) {
	var reply redis.Error
	isReply := errors.As(err, &reply) && strings.Contains(err.Error(), part)
	must(isReply, "no error with %s: %v", part, err)
}

// getUser returns the reply of ACL GETUSER. go-redis has no method for this command.
func getUser(admin *redis.Client, name string) map[string]any {
	answer, err := admin.Do(ctx, "ACL", "GETUSER", name).Result()
	ok(err)
	return fields(answer)
}

// fields converts a reply to a map. With RESP2, the reply is a flat array of keys and values.
func fields(answer any) map[string]any {
	found := map[string]any{}
	switch answer := answer.(type) {
	case map[any]any:
		for name, value := range answer {
			found[name.(string)] = value
		}
	case []any:
		for at := 0; at < len(answer); at += 2 {
			found[answer[at].(string)] = answer[at+1]
		}
	default:
		panic(fmt.Sprintf("%v is not a map", answer))
	}
	return found
}

func rules(_ int, admin *redis.Client) {
	err := admin.Do(ctx, "ACL", "GETUSER", user).Err()
	must(errors.Is(err, redis.Nil), "a user who does not exist: %v", err)
	setUser(admin, user)
	found := getUser(admin, user)
	must(slices.Contains(found["flags"].([]any), any("off")), "%v", found)
	must(found["commands"] == "-@all" && found["keys"] == "" && found["channels"] == "", "%v", found)
	setUser(admin, user, "reset", "on", ">"+password, "+@set", "-sadd", "+get",
		"~cache:*", "&message:*", "(+set %W~written:*)")
	found = getUser(admin, user)
	digest := sha256.Sum256([]byte(password))
	words := found["passwords"].([]any)
	must(len(words) == 1 && words[0] == hex.EncodeToString(digest[:]), "%v", found)
	// The order of the commands differs between processes of redis-server.
	commands := strings.Fields(found["commands"].(string))
	slices.Sort(commands)
	must(slices.Equal(commands, []string{"+@set", "+get", "-@all", "-sadd"}), "%v", found)
	must(found["keys"] == "~cache:*" && found["channels"] == "&message:*", "%v", found)
	selector := fields(found["selectors"].([]any)[0])
	must(selector["commands"] == "-@all +set" && selector["keys"] == "%W~written:*", "%v", selector)
	rejected(admin.ACLSetUser(ctx, user, "+nosuch").Err(), "Unknown command or category")
	rejected(admin.ACLSetUser(ctx, user, "<absent").Err(), "password you are trying to remove")
	// One command of the pipeline fails; the others succeed.
	answers, err := admin.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.ACLSetUser(ctx, user, "+ping")
		pipe.ACLSetUser(ctx, user, "+nosuch")
		pipe.ACLUsers(ctx)
		return nil
	})
	rejected(err, "Unknown command or category")
	must(answers[0].Err() == nil && answers[1].Err() != nil && answers[2].Err() == nil, "%v", answers)
}

func listings(_ int, admin *redis.Client) {
	name, err := admin.ACLWhoAmI(ctx).Result()
	must(err == nil && name == "default", "%s, %v", name, err)
	setUser(admin, user, "on", "nopass", "~a", "+get")
	users, err := admin.ACLUsers(ctx).Result()
	must(err == nil && slices.Equal(users, []string{"default", user}), "%v, %v", users, err)
	lines, err := admin.ACLList(ctx).Result()
	ok(err)
	must(slices.Contains(lines, "user "+user+" on nopass ~a resetchannels -@all +get"), "%v", lines)
	categories, err := admin.ACLCat(ctx).Result()
	must(err == nil && slices.Contains(categories, "scripting"), "%v, %v", categories, err)
	commands, err := admin.ACLCatArgs(ctx, &redis.ACLCatArgs{Category: "hash"}).Result()
	ok(err)
	isHash := slices.Contains(commands, "hset") && !slices.Contains(commands, "get")
	must(isHash, "%v", commands)
	rejected(admin.ACLCatArgs(ctx, &redis.ACLCatArgs{Category: "nosuch"}).Err(), "Unknown category")
	for bits, length := range map[int]int{0: 64, 5: 2, 1024: 256} {
		word, err := admin.ACLGenPass(ctx, bits).Result()
		must(err == nil && len(word) == length, "%s, %v", word, err)
		must(strings.Trim(word, "0123456789abcdef") == "", "%s is not hexadecimal", word)
	}
	help, err := admin.Do(ctx, "ACL", "HELP").StringSlice()
	must(err == nil && strings.HasPrefix(help[0], "ACL <subcommand>"), "%v, %v", help, err)
	count, err := admin.ACLDelUser(ctx, user).Result()
	must(err == nil && count == 1, "%d, %v", count, err)
	count, err = admin.ACLDelUser(ctx, user).Result()
	must(err == nil && count == 0, "%d, %v", count, err)
}

func dryRuns(_ int, admin *redis.Client) {
	setUser(admin, user, "nopass", "~a*", "+set")
	answer, err := admin.ACLDryRun(ctx, user, "set", "a", 1).Result()
	must(err == nil && answer == "OK", "%s, %v", answer, err)
	answer, err = admin.ACLDryRun(ctx, user, "get", "a").Result()
	must(err == nil && strings.Contains(answer, "'get'"), "%s, %v", answer, err)
	answer, err = admin.ACLDryRun(ctx, user, "set", "b", 1).Result()
	must(err == nil && strings.Contains(answer, "'b'"), "%s, %v", answer, err)
	rejected(admin.ACLDryRun(ctx, "nobody", "get", "a").Err(), "'nobody' not found")
}

func logins(protocol int, admin *redis.Client) {
	setUser(admin, user, "on", ">"+password, "~open", "&news",
		"+get", "+set", "+publish", "+multi", "+exec", "+acl|whoami")
	for _, pair := range [][2]string{{user, "wrong"}, {"nobody", password}} {
		stranger := as(protocol, pair[0], pair[1])
		refused(stranger.Ping(ctx).Err())
		stranger.Close()
	}
	own := as(protocol, user, password)
	defer own.Close()
	name, err := own.ACLWhoAmI(ctx).Result()
	must(err == nil && name == user, "%s, %v", name, err)
	ok(own.Set(ctx, "open", "1", 0).Err())
	denied(own.Incr(ctx, "open").Err(), "to run the 'incr' command")
	denied(own.Get(ctx, "secret").Err(), "to access one of the keys")
	denied(own.ACLList(ctx).Err(), "to run the 'acl|list' command")
	denied(own.Publish(ctx, "other", "x").Err(), "to access one of the channels")
	ok(own.Publish(ctx, "news", "x").Err())
	// A transaction with a denied command does not run.
	_, err = own.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "open", "2", 0)
		pipe.Get(ctx, "secret")
		return nil
	})
	must(err != nil, "a transaction with a denied command ran")
	value, err := own.Get(ctx, "open").Result()
	must(err == nil && value == "1", "%s, %v", value, err)
	// Deleting a user closes the user's connections. The user can't log in again.
	ok(admin.ACLDelUser(ctx, user).Err())
	until("the end of the user's connections", func() bool {
		err := own.Get(ctx, "open").Err()
		must(err != nil, "a deleted user reads a key")
		return redis.IsAuthError(err)
	})
}

func denials(protocol int, admin *redis.Client) {
	answer, err := admin.ACLLogReset(ctx).Result()
	must(err == nil && answer == "OK", "%s, %v", answer, err)
	setUser(admin, user, "on", ">"+password, "~open", "+get")
	own := as(protocol, user, password)
	defer own.Close()
	for range 3 {
		denied(own.Get(ctx, "secret").Err(), "keys")
	}
	denied(own.HSet(ctx, "open", "a", "1").Err(), "'hset'")
	stranger := as(protocol, user, "wrong")
	defer stranger.Close()
	refused(stranger.Ping(ctx).Err())
	entries, err := admin.ACLLog(ctx, 10).Result()
	ok(err)
	// When it connects, go-redis sends commands that this user may not run.
	seen := map[string]int64{}
	for _, entry := range entries {
		must(entry.Context == "toplevel" && entry.Username == user, "%+v", entry)
		must(entry.AgeSeconds >= 0 && entry.AgeSeconds < 60 && entry.ClientInfo.ID > 0, "%+v", entry)
		seen[entry.Reason+" "+entry.Object] += entry.Count
		if entry.Object == "secret" {
			must(entry.ClientInfo.User == user && entry.ClientInfo.LastCmd == "get", "%+v", entry.ClientInfo)
		}
	}
	must(seen["key secret"] == 3 && seen["command hset"] == 1, "%v", seen)
	must(seen["auth hello"]+seen["auth auth"] > 0, "%v", seen)
	first, err := admin.ACLLog(ctx, 1).Result()
	must(err == nil && len(first) == 1, "%v, %v", first, err)
	ok(admin.ACLLogReset(ctx).Err())
	entries, err = admin.ACLLog(ctx, 10).Result()
	must(err == nil && len(entries) == 0, "%v, %v", entries, err)
}

// file saves the users, changes them, and loads them again. go-redis has no methods for ACL SAVE
// and ACL LOAD.
func file(protocol int, admin *redis.Client) {
	setUser(admin, user, "on", ">"+password, "~open", "+get")
	saved, err := admin.ACLList(ctx).Result()
	ok(err)
	answer, err := admin.Do(ctx, "ACL", "SAVE").Text()
	must(err == nil && answer == "OK", "%s, %v", answer, err)
	setUser(admin, user, "+set")
	setUser(admin, "unsaved")
	answer, err = admin.Do(ctx, "ACL", "LOAD").Text()
	must(err == nil && answer == "OK", "%s, %v", answer, err)
	loaded, err := admin.ACLList(ctx).Result()
	must(err == nil && slices.Equal(loaded, saved), "%v, %v", loaded, err)
	own := as(protocol, user, password)
	defer own.Close()
	denied(own.Set(ctx, "open", "x", 0).Err(), "'set'")
	ok(admin.ACLDelUser(ctx, user).Err())
	ok(admin.Do(ctx, "ACL", "SAVE").Err())
}

func binaryNames(protocol int, admin *redis.Client) {
	setUser(admin, binaryUser, "on", ">"+password, "+acl")
	users, err := admin.ACLUsers(ctx).Result()
	must(err == nil && slices.Contains(users, binaryUser), "%q, %v", users, err)
	lines, err := admin.ACLList(ctx).Result()
	ok(err)
	must(strings.HasPrefix(lines[len(lines)-1], "user "+binaryUser+" on "), "%q", lines)
	own := as(protocol, binaryUser, password)
	defer own.Close()
	name, err := own.ACLWhoAmI(ctx).Result()
	must(err == nil && name == binaryUser, "%q, %v", name, err)
	must(getUser(own, binaryUser)["commands"] == "-@all +acl", "%v", getUser(own, binaryUser))
	denied(own.Get(ctx, "\xff").Err(), "'get'")
	entries, err := admin.ACLLog(ctx, 1).Result()
	must(err == nil && entries[0].Username == binaryUser, "%v, %v", entries, err)
	count, err := admin.ACLDelUser(ctx, binaryUser).Result()
	must(err == nil && count == 1, "%d, %v", count, err)
	for _, name := range []string{"with space", "with\x00null"} {
		rejected(admin.ACLSetUser(ctx, name).Err(), "can't contain spaces or null characters")
	}
}
