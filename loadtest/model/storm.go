package main

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/pullpass/pullpass/loadtest/fleet"
)

// Times are in seconds.

// storm is a restart of all nodes, and the replicas that answer it.
type storm struct {
	Nodes  int
	Window float64 // in which the nodes come back, at random

	Replicas, Cores int
	Affinity        bool    // the balancer sends all connections of a node to one replica
	First, Repeated float64 // CPU of an exchange, with its TLS handshake: of a token not seen before, and of the next one
	Limit           limit

	Requests int     // for each image: 2 when it is new to the node, 1 when its content is there
	Between  float64 // from one request to the next: the registry answers
	Download float64 // of an image; none is the worst case for the token endpoint

	Seed uint64
}

// The behaviour of a kubelet and containerd (Kubernetes 1.36, defaults).
const (
	registryPullQPS = 5.0
	registryBurst   = 10.0
	firstBackOff    = 10.0 // after a failed pull, of the pod and its image; then twice as long each time
	longestBackOff  = 300.0
	backOffJitter   = 0.5 // a pod is looked at again up to this much later
)

// The behaviour of a replica with more requests than it can answer (internal/exchange/queue.go, internal/server/listen.go).
const (
	inFlight     = 1024
	waiting      = 4096
	maxQueueTime = 5.0
)

// outcome is what became of a storm.
type outcome struct {
	Requests    int
	Limited     int       // 429
	Overloaded  int       // 503
	Times       []float64 // of the good answers, sorted
	Utilization float64   // of the busiest second: needed CPU by CPU that is there
	Pulled      []float64 // when each pod had its image, sorted
	Arrivals    []int     // requests in each second
}

// sim is a storm under way.
type sim struct {
	storm
	random   *rand.Rand
	now      float64
	events   events
	made     int
	nodes    []node
	attempts []uint8     // failed pulls of each pod
	cores    [][]float64 // of each replica: when each core will be free
	buckets  map[bucket]float64
	work     []float64 // seconds of CPU asked for in each second
	outcome  outcome
}

// node is a kubelet that pulls one image at a time.
type node struct {
	waiting  []int32 // pods whose pull has not begun, in order
	pulling  bool
	replica  int     // that answered last
	tokens   float64 // of registryPullQPS and its burst
	filledAt float64
}

// run plays the storm until every pod has its image.
func (s storm) run() outcome {
	r := &sim{
		storm: s, random: rand.New(rand.NewPCG(s.Seed, 0)),
		nodes: make([]node, s.Nodes), attempts: make([]uint8, s.Nodes*fleet.PodsPerNode),
		cores: make([][]float64, s.Replicas), buckets: map[bucket]float64{},
	}
	for i := range r.cores {
		r.cores[i] = make([]float64, s.Cores)
	}
	for i := range r.nodes {
		r.nodes[i].tokens = registryBurst
		r.at(r.random.Float64()*s.Window, event{kind: nodeStarts, id: int32(i)})
	}
	for len(r.events) > 0 {
		e := heap.Pop(&r.events).(event)
		r.now = e.at
		switch e.kind {
		case nodeStarts:
			for slot := range fleet.PodsPerNode {
				r.nodes[e.id].waiting = append(r.nodes[e.id].waiting, e.id*fleet.PodsPerNode+int32(slot))
			}
			r.pullNext(int(e.id))
		case podReturns:
			n := int(e.id) / fleet.PodsPerNode
			r.nodes[n].waiting = append(r.nodes[n].waiting, e.id)
			r.pullNext(n)
		case requestSent:
			r.answer(e.id, e.request)
		case pullEnded:
			r.outcome.Pulled = append(r.outcome.Pulled, r.now)
			n := int(e.id) / fleet.PodsPerNode
			r.nodes[n].pulling = false
			r.pullNext(n)
		}
	}
	slices.Sort(r.outcome.Times)
	for _, cpu := range r.work {
		r.outcome.Utilization = math.Max(r.outcome.Utilization, cpu/float64(s.Replicas*s.Cores))
	}
	return r.outcome
}

// pullNext begins the next pull of an idle node. Pulls above the burst fail at once, as the kubelet's do.
func (s *sim) pullNext(number int) {
	n := &s.nodes[number]
	for !n.pulling && len(n.waiting) > 0 {
		pod := n.waiting[0]
		n.waiting = n.waiting[1:]
		n.tokens = math.Min(registryBurst, n.tokens+(s.now-n.filledAt)*registryPullQPS)
		n.filledAt = s.now
		if n.tokens < 1 {
			s.backOff(pod)
			continue
		}
		n.tokens--
		n.pulling = true
		s.at(s.now, event{kind: requestSent, id: pod})
	}
}

// answer has a request of a pod answered.
func (s *sim) answer(pod int32, request int8) {
	s.outcome.Requests++
	count(&s.outcome.Arrivals, s.now, 1)
	number := int(pod) / fleet.PodsPerNode
	n := &s.nodes[number]
	// Every request is a connection of its own, and a balancer knows no pulls.
	replica := number % s.Replicas
	if !s.Affinity {
		replica = s.random.IntN(s.Replicas)
	}
	cost := s.First
	if request > 0 && replica == n.replica {
		cost = s.Repeated
	}
	n.replica = replica

	cores := s.cores[replica]
	free := 0
	for i := range cores {
		if cores[i] < cores[free] {
			free = i
		}
	}
	wait := math.Max(0, cores[free]-s.now)
	if wait > maxQueueTime || wait*float64(len(cores))/cost > inFlight+waiting {
		s.outcome.Overloaded++
		s.fail(pod)
		return
	}
	cores[free] = s.now + wait + cost
	count(&s.work, s.now, cost)
	if !s.take(pod, replica) {
		s.outcome.Limited++
		s.fail(pod)
		return
	}
	s.outcome.Times = append(s.outcome.Times, wait+cost)
	answered := s.now + wait + cost + s.Between
	if int(request)+1 < s.Requests {
		s.at(answered, event{kind: requestSent, id: pod, request: request + 1})
		return
	}
	s.at(answered+s.Download, event{kind: pullEnded, id: pod})
}

// fail ends a pull: containerd does not ask again after 429 or 503.
func (s *sim) fail(pod int32) {
	n := int(pod) / fleet.PodsPerNode
	s.nodes[n].pulling = false
	s.backOff(pod)
	s.pullNext(n)
}

func (s *sim) backOff(pod int32) {
	wait := math.Min(longestBackOff, firstBackOff*math.Pow(2, float64(s.attempts[pod])))
	s.attempts[pod]++
	s.at(s.now+wait*(1+backOffJitter*s.random.Float64()), event{kind: podReturns, id: pod})
}

// count adds to the second in which something happens.
func count[T int | float64](seconds *[]T, now float64, n T) {
	for len(*seconds) <= int(now) {
		*seconds = append(*seconds, 0)
	}
	(*seconds)[int(now)] += n
}

type kind int8

const (
	nodeStarts kind = iota // id: of the node
	podReturns             // id: of the pod, here and below
	requestSent
	pullEnded
)

type event struct {
	at      float64
	order   int // of events at the same time: as they were made
	id      int32
	kind    kind
	request int8 // 0: the first of a pull
}

func (s *sim) at(t float64, e event) {
	s.made++
	e.at, e.order = t, s.made
	heap.Push(&s.events, e)
}

// events is a heap: what happens first comes first.
type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}
