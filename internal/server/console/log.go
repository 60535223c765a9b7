package console

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/base/fair"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange"
)

const (
	maxQueue  = 1024     // events that wait to be noted; further ones are dropped
	maxEvents = 10_000   // remembered events
	maxBytes  = 12 << 20 // their approximate size
	maxBatch  = 256      // events that are sent to the other replicas at once, each second

	fetchTimeout = 10 * time.Second
)

// Shared holds the decisions of all replicas. On an error, each replica shows only its own.
type Shared interface {
	AddDecisions(ctx context.Context, entries [][]byte) error
	Decisions(ctx context.Context, after string) (entries [][]byte, last string, err error)
}

// LogConfig configures a Log.
type LogConfig struct {
	Shared        Shared // nil: there is only one replica
	MaxEntryBytes int    // of Shared
	Logger        *slog.Logger
	Now           func() time.Time // nil means time.Now
}

// Log remembers the events of the past hours, up to a bound. If it is full, it forgets the oldest
// event of the holder with the most. It is safe for concurrent use. Record never waits: dropped
// events are counted.
type Log struct {
	config  LogConfig
	queue   chan *exchange.Event
	dropped atomic.Uint64 // because of a full queue
	unsent  atomic.Uint64 // not sent to the other replicas

	mu      sync.Mutex
	holders map[string]*holder
	largest byBytes                    // all holders
	known   map[string]*exchange.Event // by their ids
	noted   uint64                     // number of events so far
	bytes   int
	load    load

	fetching  sync.Mutex
	last      string    // position of the last reading of Shared
	fetchedAt time.Time // time of that reading
	failure   atomic.Pointer[string]
}

// entry is an event, which must not be changed.
type entry struct {
	event  *exchange.Event
	bytes  int
	number uint64 // order of arrival
}

var _ exchange.Recorder = (*Log)(nil)

// NewLog returns a Log. It notes no events until Run is called.
func NewLog(c LogConfig) *Log {
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return &Log{config: c, queue: make(chan *exchange.Event, maxQueue), holders: map[string]*holder{}, known: map[string]*exchange.Event{}}
}

// Record implements exchange.Recorder.
func (l *Log) Record(e *exchange.Event) {
	select {
	case l.queue <- e:
	default:
		l.dropped.Add(1)
	}
}

// Run notes events until ctx ends.
func (l *Log) Run(ctx context.Context) {
	var sending sync.WaitGroup
	defer sending.Wait()
	batches := make(chan [][]byte)
	if l.config.Shared != nil {
		sending.Go(func() { l.send(ctx, batches) })
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var batch fair.Queue[[]byte] // by holder
	var sent [][]byte            // of the batch, in fair order
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-l.queue:
			l.mu.Lock()
			l.load.add(e)
			l.note(e)
			l.mu.Unlock()
			if l.config.Shared == nil {
				continue
			}
			if text, err := encode(e, l.config.MaxEntryBytes); err == nil {
				batch.Push(holderOf(e), text)
			}
			if batch.Len() > maxBatch {
				batch.Drop()
				l.unsent.Add(1)
			}
		case <-tick.C:
			for len(sent) < maxBatch {
				text, ok := batch.Pop()
				if !ok {
					break
				}
				sent = append(sent, text)
			}
			if len(sent) == 0 {
				continue
			}
			select {
			case batches <- sent:
				sent = nil
			default: // the previous batch is still being sent
			}
		}
	}
}

func (l *Log) send(ctx context.Context, batches <-chan [][]byte) {
	for {
		select {
		case <-ctx.Done():
			return
		case batch := <-batches:
			err := l.config.Shared.AddDecisions(ctx, batch)
			if ctx.Err() != nil {
				return // which says nothing about the other replicas
			}
			if err != nil {
				l.unsent.Add(uint64(len(batch)))
			}
			l.failed(err)
		}
	}
}

// failed records whether the exchange with other replicas works.
func (l *Log) failed(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if before := l.failure.Swap(&text); text != "" && (before == nil || *before != text) {
		l.config.Logger.Warn("console: the page shows what this replica decided, and not what others did", "error", text)
	}
}

// note must be called with mu held.
func (l *Log) note(e *exchange.Event) {
	if e.ID == "" || l.known[e.ID] != nil {
		return
	}
	name := holderOf(e)
	h := l.holders[name]
	if h == nil {
		h = &holder{name: name}
		l.holders[name] = h
		heap.Push(&l.largest, h)
	}
	l.noted++
	size := sizeOf(e)
	h.entries, h.bytes = append(h.entries, entry{e, size, l.noted}), h.bytes+size
	heap.Fix(&l.largest, h.place)
	l.known[e.ID] = e
	l.bytes += size
	for len(l.known) > maxEvents || l.bytes > maxBytes {
		l.forget()
	}
}

// forget forgets the oldest event of the holder with the most.
func (l *Log) forget() {
	h := l.largest[0]
	oldest := h.entries[0]
	h.entries[0] = entry{} // for the garbage collector
	h.entries, h.bytes = h.entries[1:], h.bytes-oldest.bytes
	l.bytes -= oldest.bytes
	delete(l.known, oldest.event.ID)
	if len(h.entries) == 0 {
		heap.Remove(&l.largest, h.place)
		delete(l.holders, h.name)
		return
	}
	heap.Fix(&l.largest, h.place)
}

// fetch reads new decisions of other replicas, at most once a second. It runs only while the
// console is in use.
func (l *Log) fetch(ctx context.Context) {
	if l.config.Shared == nil || !l.fetching.TryLock() {
		return
	}
	defer l.fetching.Unlock()
	if now := l.config.Now(); now.Sub(l.fetchedAt) >= time.Second {
		l.fetchedAt = now
	} else {
		return
	}
	// A client that cancels its request says nothing about the other replicas.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
	defer cancel()
	for range 10 { // more than can be necessary
		entries, last, err := l.config.Shared.Decisions(ctx, l.last)
		if l.failed(err); err != nil || last == l.last {
			return
		}
		l.last = last
		l.mu.Lock()
		for _, text := range entries {
			if e, err := decode(text); err == nil {
				l.note(e)
			}
		}
		l.mu.Unlock()
	}
}

// newest returns the events that match, the newest first.
func (l *Log) newest(q *query) []*exchange.Event {
	l.mu.Lock()
	entries := make([]entry, 0, len(l.known))
	for _, h := range l.holders {
		entries = append(entries, h.entries...)
	}
	l.mu.Unlock()
	entries = slices.DeleteFunc(entries, func(e entry) bool { return !q.matches(e.event) })
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(b.event.Time.Compare(a.event.Time), cmp.Compare(b.number, a.number))
	})
	found := make([]*exchange.Event, len(entries))
	for i := range entries {
		found[i] = entries[i].event
	}
	return found
}

// find returns the event with an id, or nil.
func (l *Log) find(id string) *exchange.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known[id]
}

// encode encodes the event for other replicas. It shortens or removes fields of an event that exceeds
// limit. Such an event can still be found, and explained from the audit log.
func encode(e *exchange.Event, limit int) ([]byte, error) {
	text, err := json.Marshal(e)
	if err != nil || len(text) <= limit {
		return text, err
	}
	short := *e
	short.Requested, short.Granted, short.Scopes = first(e.Requested, 4), first(e.Granted, 4), nil
	short.Omitted += len(e.Requested) - len(short.Requested)
	short.Message, short.Client = term.Cut(e.Message, 300), term.Cut(e.Client, 100)
	if text, err = json.Marshal(&short); err == nil && len(text) > limit {
		short.Requested, short.Granted, short.Identity, short.Claimed, short.Gateway, short.Trial = nil, nil, nil, nil, nil, nil
		text, err = json.Marshal(&short)
	}
	return text, err
}

func first(list []string, n int) []string { return list[:min(n, len(list))] }

func decode(text []byte) (*exchange.Event, error) {
	var e exchange.Event
	err := json.Unmarshal(text, &e)
	return &e, err
}

// sizeOf returns the approximate size of an event.
func sizeOf(e *exchange.Event) int {
	size := 1024 + len(e.Message) + len(e.Client) + len(e.Account) + len(e.ClientID) + len(e.Rule)
	for _, list := range [][]string{e.Requested, e.Granted} {
		for _, s := range list {
			size += 32 + len(s)
		}
	}
	for i := range e.Scopes {
		s := &e.Scopes[i]
		size += 160 + len(s.Scope) + len(s.Reason) + len(s.Remedy)
	}
	if e.Identity != nil {
		for name, value := range e.Identity.Claims {
			size += 64 + len(name) + len(value)
		}
	}
	if e.Claimed != nil {
		size += 256 + len(e.Claimed.Subject) + len(e.Claimed.Issuer)
	}
	if e.Gateway != nil {
		size += 512
	}
	if e.Trial != nil {
		size += 256 + len(e.Trial.Rule)
		for _, s := range e.Trial.Granted {
			size += 32 + len(s)
		}
	}
	return size
}
