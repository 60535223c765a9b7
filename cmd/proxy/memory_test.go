package main

import (
	"bytes"
	"math"
	"runtime/debug"
	"strings"
	"testing"
	"testing/fstest"
)

// Not parallel: the limit is that of the process.
func TestServeFollowsTheContainersMemory(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	limited := func(max string) fstest.MapFS {
		return fstest.MapFS{"proc/self/cgroup": {Data: []byte("0::/\n")}, "sys/fs/cgroup/memory.max": {Data: []byte(max)}}
	}
	for _, test := range []struct {
		name, env, max string
		want           int64
		log            string
	}{
		{"a limit", "", "4000000000\n", 3600000000, ""},
		{"no limit", "", "max\n", math.MaxInt64, ""},
		{"GOMEMLIMIT, which Go has read", "5GiB", "4000000000\n", math.MaxInt64, ""},
		{"what cannot be read", "", "much\n", math.MaxInt64, "set GOMEMLIMIT"},
	} {
		debug.SetMemoryLimit(math.MaxInt64)
		t.Setenv("GOMEMLIMIT", test.env)
		var log bytes.Buffer
		serve := serveCommand(limited(test.max))
		serve.SetArgs([]string{"--config", "none.yaml"}) // it ends there
		serve.SetErr(&log)
		serve.SetOut(&log)
		if err := serve.ExecuteContext(t.Context()); err == nil {
			t.Fatal("serve without a configuration")
		}
		if got := debug.SetMemoryLimit(-1); got != test.want {
			t.Errorf("%s: the limit is %d, want %d", test.name, got, test.want)
		}
		if test.log != "" && !strings.Contains(log.String(), test.log) {
			t.Errorf("%s: the log says %s", test.name, log.String())
		}
	}
}
