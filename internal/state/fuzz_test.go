package state

import (
	"encoding/json"
	"testing"
	"time"
)

// A revocation in Redis is read only in the field of its own target, and not from the future.
func FuzzRecord(f *testing.F) {
	target := Target{Kind: "token", Name: "id-1"}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	text, err := json.Marshal(&record{Revocation: Revocation{Target: target}})
	if err != nil {
		f.Fatal(err)
	}
	for _, value := range []string{"1 2 " + string(text), "9999999999999999 2 " + string(text), "1", "x 1 {}", "1 2 {\"target\":{\"kind\":\"x\"}}"} {
		f.Add(target.field(), value)
		f.Add("x", value)
	}
	f.Fuzz(func(t *testing.T, field, value string) {
		got, err := decodeRecord(field, value, now)
		if err == nil && (got.Target.field() != field || got.Target.validate() != nil || got.changed > now.UnixMicro()) {
			t.Errorf("%q in %q: %+v", value, field, got)
		}
	})
}
