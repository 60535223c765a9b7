package testkit

import (
	"syscall"
	"testing"
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
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}
