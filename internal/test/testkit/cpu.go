package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// MeasureCPU measures what processors do until the returned function is called, which
// reports it for each turn of b.Loop: on a machine that is busy with other things, the time
// that passes says nothing.
func MeasureCPU(b *testing.B) (report func()) {
	b.Helper()
	before := cpu(b)
	return func() { b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op") }
}

func cpu(b *testing.B) int64 {
	b.Helper()
	var usage syscall.Rusage
	Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return usage.Utime.Nano() + usage.Stime.Nano()
}

// MeasureProgram builds the package in source and runs it for each turn of b.Loop, after prepare has
// set its arguments and input. It reports the processor time of a run and the size of the program.
func MeasureProgram(b *testing.B, source string, prepare func(*exec.Cmd)) {
	b.Helper()
	binary := filepath.Join(b.TempDir(), "program")
	build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, source)
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, output)
	}
	info, err := os.Stat(binary)
	Must(b, err)
	var cpu time.Duration
	for b.Loop() {
		program := exec.CommandContext(b.Context(), binary)
		prepare(program)
		if output, err := program.Output(); err != nil || len(output) == 0 {
			b.Fatalf("output %q: %v", output, err)
		}
		cpu += program.ProcessState.UserTime() + program.ProcessState.SystemTime()
	}
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(info.Size()), "binary-B")
}

// Heap returns the bytes that are in use.
func Heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
