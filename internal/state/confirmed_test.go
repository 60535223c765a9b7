package state_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pullpass/pullpass/internal/state"
	"github.com/pullpass/pullpass/internal/state/statetest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// An operator whose clock is late gets an error for a revocation that seems to count but has ended
// for all other replicas.
func TestOperatorsWithALateClock(t *testing.T) {
	t.Parallel()
	for late, confirmed := range map[time.Duration]bool{
		0: true, -time.Hour: true, 4 * time.Minute: true,
		5*time.Minute + 30*time.Second: false, // Redis would keep it for another minute, for replicas that are late, too
		7 * time.Minute:                false,
	} {
		admin := administrator(t, statetest.Redis(t))
		operator := listAt(t, admin, -late)
		revocation := anyRevocation("a reason")
		revocation.Until = time.Now().Add(5*time.Minute - late)
		err := operator.Add(t.Context(), revocation)
		if n := admin.HLen(t.Context(), "pullpass:revocations").Val(); (err == nil) != confirmed || (n == 1) != confirmed {
			t.Errorf("%s late: %v, and %d records", late, err, n)
		}
		if !confirmed && (!errors.Is(err, state.ErrNotConfirmed) || !strings.Contains(err.Error(), "nothing was written, because by the clock of Redis")) {
			t.Errorf("%s late: %v", late, err)
		}
	}
	// The same for the removal of a revocation that ended half a minute ago.
	admin := administrator(t, statetest.Redis(t))
	operator := listAt(t, admin, -5*time.Minute)
	ended := anyRevocation("a reason")
	ended.Until = time.Now().Add(-30 * time.Second)
	testkit.Must(t, operator.Restore(t.Context(), ended, 1))
	if err := operator.Remove(t.Context(), ended.Target, "an operator"); !errors.Is(err, state.ErrNotConfirmed) {
		t.Errorf("removed: %v", err)
	}
}

// A change counts only if the list that is read from Redis has it, and not because it was written.
func TestRevocationsThatAreNotReadAgain(t *testing.T) {
	t.Parallel()
	admin := administrator(t, statetest.Redis(t))
	operator := listAt(t, admin, -25*time.Hour) // the clock of Redis is ahead by this
	revocation := anyRevocation("a reason")
	err := operator.Add(t.Context(), revocation)
	if !errors.Is(err, state.ErrNotConfirmed) || !strings.Contains(err.Error(), "was changed in the future") {
		t.Errorf("added: %v", err)
	}
	// Half a day is treated as a wrong clock.
	operator = listAt(t, admin, -12*time.Hour)
	if err := operator.Add(t.Context(), revocation); err != nil {
		t.Errorf("half a day: %v", err)
	}
	if err := operator.Remove(t.Context(), revocation.Target, "an operator"); err != nil {
		t.Errorf("removed after half a day: %v", err)
	}
}

// TestRevokeAfterARecordOfTheFuture writes a removal into Redis that is meant to be final.
func TestRevokeAfterARecordOfTheFuture(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		changed string
		ignored bool
	}{
		"the greatest number":       {"9223372036854775807", true},
		"more than a number holds":  {strings.Repeat("9", 400), true},
		"where doubles get coarse":  {"9007199254740992", true},
		"more than a day ahead":     {fmt.Sprint(time.Now().Add(25 * time.Hour).UnixMicro()), true},
		"less than a day ahead":     {fmt.Sprint(time.Now().Add(23 * time.Hour).UnixMicro()), false},
		"as if an operator removed": {fmt.Sprint(time.Now().Add(time.Hour).UnixMicro()), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin := administrator(t, statetest.Redis(t))
			replica, operator := listAt(t, admin, 0), listAt(t, admin, 0)
			revoked := func(want bool) {
				t.Helper()
				for _, list := range []*state.RedisRevocations{replica, operator, listAt(t, admin, 0)} {
					testkit.Must(t, list.Refresh(t.Context()))
					if r, err := list.Revoked(&revokedPod); (r != nil) != want || err != nil {
						t.Errorf("revoked: %+v, %v, want %t", r, err, want)
					}
				}
			}
			testkit.Must(t, operator.Add(t.Context(), anyRevocation("a reason")))
			revoked(true)
			lastWord(t, admin, c.changed)
			if c.ignored {
				testkit.Must(t, replica.Refresh(t.Context()))
				if failure := replica.Status().LastFailure; failure == "" {
					t.Error("the status does not tell of it")
				}
			}
			revoked(c.ignored) // by the replica, which restores lost records
			// In any case, an operator can change it later, even with an empty list.
			lastWord(t, admin, c.changed)
			if err := listAt(t, admin, 0).Add(t.Context(), anyRevocation("again")); err != nil {
				t.Error(err)
			}
			revoked(true)
			if failure := replica.Status().LastFailure; failure != "" {
				t.Error(failure)
			}
		})
	}
	// A replica that holds such a record does not write it into Redis either.
	admin := administrator(t, statetest.Redis(t))
	testkit.Must(t, listAt(t, admin, 0).Restore(t.Context(), anyRevocation("a reason"), time.Now().Add(25*time.Hour).UnixMicro()))
	if n := admin.HLen(t.Context(), "pullpass:revocations").Val(); n != 0 {
		t.Errorf("%d records", n)
	}
}

// A record with an end in the distant future does not prevent other revocations.
func TestRevokeBesideAnEndlessRecord(t *testing.T) {
	t.Parallel()
	admin := administrator(t, statetest.Redis(t))
	testkit.Must(t, admin.HSet(t.Context(), "pullpass:revocations", "field", "1 "+strings.Repeat("9", 400)+" {}").Err())
	if err := listAt(t, admin, 0).Add(t.Context(), anyRevocation("a reason")); err != nil {
		t.Error(err)
	}
}

// listAt returns the list of an operator whose clock is ahead of Redis, or late.
func listAt(t *testing.T, admin *redis.Client, ahead time.Duration) *state.RedisRevocations {
	t.Helper()
	return state.NewRedisRevocations(open(t, state.RedisConfig{
		Addresses: []string{admin.Options().Addr}, Timeout: patient, Now: func() time.Time { return time.Now().Add(ahead) },
	}))
}

// lastWord replaces the only record with its removal.
func lastWord(t *testing.T, admin *redis.Client, changed string) {
	t.Helper()
	values, err := admin.HGetAll(t.Context(), "pullpass:revocations").Result()
	if err != nil || len(values) != 1 {
		t.Fatal(values, err)
	}
	removal := struct {
		state.Revocation
		Removed bool `json:"removed"`
	}{anyRevocation("of another owner"), true}
	text, err := json.Marshal(removal)
	testkit.Must(t, err)
	for field := range values {
		testkit.Must(t, admin.HSet(t.Context(), "pullpass:revocations", field, fmt.Sprint(changed, " ", removal.Until.UnixMilli(), " ", string(text))).Err())
	}
}
