package console

import "github.com/pullpass/pullpass/internal/exchange"

// holder groups the remembered events by caller: frequent events of one caller must not displace
// those of others.
type holder struct {
	name    string
	entries []entry // the oldest first
	bytes   int
	place   int // in byBytes
}

// holderOf returns the namespace of a ServiceAccount, or the project of another identity. All
// unproven callers share one holder.
func holderOf(e *exchange.Event) string {
	switch {
	case e.ServiceAccount != nil:
		return "namespace " + e.Cluster + "/" + e.Namespace
	case e.Identity != nil:
		return "identity " + e.Identity.Name + "/" + e.Identity.Project
	}
	return ""
}

// byBytes implements heap.Interface: the holder with the most bytes comes first.
type byBytes []*holder

func (b byBytes) Len() int           { return len(b) }
func (b byBytes) Less(i, k int) bool { return b[i].bytes > b[k].bytes }

func (b byBytes) Swap(i, k int) {
	b[i], b[k] = b[k], b[i]
	b[i].place, b[k].place = i, k
}

func (b *byBytes) Push(h any) {
	h.(*holder).place = len(*b)
	*b = append(*b, h.(*holder))
}

func (b *byBytes) Pop() any {
	last := len(*b) - 1
	h := (*b)[last]
	(*b)[last] = nil
	*b = (*b)[:last]
	return h
}
