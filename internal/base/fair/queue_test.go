package fair

import (
	"fmt"
	"strings"
	"testing"
)

func drain(q *Queue[string]) string {
	var all []string
	for value, ok := q.Pop(); ok; value, ok = q.Pop() {
		all = append(all, value)
	}
	return strings.Join(all, " ")
}

func TestTenantsTakeTurns(t *testing.T) {
	t.Parallel()
	var q Queue[string]
	if _, ok := q.Pop(); ok {
		t.Error("an empty queue has a value")
	}
	for i := range 4 {
		q.Push("a", fmt.Sprint("a", i))
	}
	q.Push("b", "b0")
	q.Push("c", "c0")
	q.Push("b", "b1")
	if first, _ := q.Pop(); first != "a0" || q.Len() != 6 {
		t.Errorf("%s is first, and %d wait", first, q.Len())
	}
	q.Push("d", "d0")
	if got := drain(&q); got != "b0 c0 a1 d0 b1 a2 a3" || q.Len() != 0 {
		t.Errorf("%s; %d wait", got, q.Len())
	}
	q.Push("a", "again")
	if got := drain(&q); got != "again" {
		t.Error(got)
	}
}

// The tenant with the most values loses one first.
func TestDrop(t *testing.T) {
	t.Parallel()
	var q Queue[string]
	if _, ok := q.Drop(); ok {
		t.Error("an empty queue has a value")
	}
	for _, value := range strings.Fields("b0 a0 a1 a2 c0") {
		q.Push(value[:1], value)
	}
	var dropped []string
	for range 3 {
		value, _ := q.Drop()
		dropped = append(dropped, value)
	}
	if got := strings.Join(dropped, " "); got != "a2 a1 a0" || q.Len() != 2 {
		t.Errorf("dropped %s; %d are left", got, q.Len())
	}
	if got := drain(&q); got != "b0 c0" {
		t.Errorf("%s are left", got)
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	var q Queue[string]
	for _, value := range strings.Fields("a0 b0 a1 a2 c0") {
		q.Push(value[:1], value)
	}
	for _, value := range strings.Fields("a1 b0 none") {
		q.Remove(value[:1], func(other string) bool { return other == value })
	}
	if q.Len() != 3 {
		t.Errorf("%d are left", q.Len())
	}
	if got := drain(&q); got != "a0 c0 a2" {
		t.Errorf("%s are left", got)
	}
}
