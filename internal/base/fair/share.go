package fair

// Share bounds how much tenants hold together, and keeps room for a new tenant: each tenant can
// hold three times the free amount. So a single tenant can hold three quarters of it, and n tenants
// 3/(3n+1) each. (Choudhury and Hahne, Dynamic Queue Length Thresholds, 1998.) It is not safe for
// concurrent use.
type Share struct {
	free int
	held map[string]int
}

// NewShare returns an empty Share.
func NewShare(most int) *Share { return &Share{most, map[string]int{}} }

// Enter counts one more for the tenant if its bound allows that. If it returns true, the caller
// must call Leave.
func (s *Share) Enter(tenant string) bool {
	if s.held[tenant] >= 3*s.free {
		return false
	}
	s.held[tenant]++
	s.free--
	return true
}

// Leave gives one back.
func (s *Share) Leave(tenant string) {
	s.free++
	if s.held[tenant]--; s.held[tenant] == 0 {
		delete(s.held, tenant)
	}
}
