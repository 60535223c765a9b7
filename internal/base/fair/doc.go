// Package fair lets tenants take turns. A tenant with much work delays each other tenant by at most
// the work of one turn.
//
// The caller decides which tenant a value belongs to.
package fair
