package fair

import "slices"

// Queue gives each tenant in turn the oldest of its values. The zero Queue is empty. It is not
// safe for concurrent use.
type Queue[T any] struct {
	turns   []string // the tenants with values, the next one first
	waiting map[string][]T
	length  int
}

// Push adds a value.
func (q *Queue[T]) Push(tenant string, value T) {
	if q.waiting == nil {
		q.waiting = map[string][]T{}
	}
	before := q.waiting[tenant]
	if len(before) == 0 {
		q.turns = append(q.turns, tenant)
	}
	q.waiting[tenant] = append(before, value)
	q.length++
}

// Pop takes the next value. It returns false if the queue is empty.
func (q *Queue[T]) Pop() (value T, ok bool) {
	if q.length == 0 {
		return value, false
	}
	tenant := q.turns[0]
	q.turns[0] = "" // for the garbage collector
	q.turns = q.turns[1:]
	values := q.waiting[tenant]
	value, values[0] = values[0], value
	if values = values[1:]; len(values) == 0 {
		delete(q.waiting, tenant)
	} else {
		q.waiting[tenant] = values
		q.turns = append(q.turns, tenant)
	}
	q.length--
	return value, true
}

// Drop takes the newest value of the tenant with the most values. It returns false if the queue is
// empty.
func (q *Queue[T]) Drop() (value T, ok bool) {
	most := ""
	for tenant, values := range q.waiting {
		if n := len(q.waiting[most]); len(values) > n || len(values) == n && tenant < most {
			most = tenant
		}
	}
	last := len(q.waiting[most]) - 1
	if last < 0 {
		return value, false
	}
	value = q.waiting[most][last]
	q.cut(most, last)
	return value, true
}

// Remove removes the oldest value of the tenant for which matches returns true.
func (q *Queue[T]) Remove(tenant string, matches func(T) bool) {
	if i := slices.IndexFunc(q.waiting[tenant], matches); i >= 0 {
		q.cut(tenant, i)
	}
}

// cut removes one value of a tenant, and its turn with the last one.
func (q *Queue[T]) cut(tenant string, i int) {
	values := slices.Delete(q.waiting[tenant], i, i+1)
	q.length--
	if q.waiting[tenant] = values; len(values) > 0 {
		return
	}
	delete(q.waiting, tenant)
	turn := slices.Index(q.turns, tenant)
	q.turns = slices.Delete(q.turns, turn, turn+1)
}

// Len returns the number of values.
func (q *Queue[T]) Len() int { return q.length }
