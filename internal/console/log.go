package console

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/term"
)

const (
	maxQueue  = 1024     // events that wait to be noted; then they are dropped
	maxEvents = 10_000   // that are remembered
	maxBytes  = 12 << 20 // which they take up, about
	maxBatch  = 256      // that are sent to the other replicas at once, each second
)

// Shared is what all replicas have decided. An error says that it is not known: then
// each replica shows its own.
type Shared interface {
	AddDecisions(ctx context.Context, entries [][]byte) error
	Decisions(ctx context.Context, after string) (entries [][]byte, last string, err error)
}

// LogConfig configures a Log.
type LogConfig struct {
	Shared        Shared // nil: there is one replica
	MaxEntryBytes int    // of Shared
	Logger        *slog.Logger
	Now           func() time.Time // nil means time.Now
}

// Log remembers the events of the past hours, up to a bound. It is safe for concurrent
// use, and Record never waits: what finds no room is counted.
type Log struct {
	config  LogConfig
	queue   chan *exchange.Event
	dropped atomic.Uint64 // by a full queue
	unsent  atomic.Uint64 // to the other replicas

	mu      sync.Mutex
	entries []entry // the oldest first, as they came
	known   map[string]bool
	bytes   int
	load    load

	fetching  sync.Mutex
	last      string    // of what was read of Shared
	fetchedAt time.Time // when that was
	failure   atomic.Pointer[string]
}

// entry is an event, which nobody changes.
type entry struct {
	event *exchange.Event
	bytes int
}

var _ exchange.Recorder = (*Log)(nil)

// NewLog returns a Log that notes nothing until Run is called.
func NewLog(c LogConfig) *Log {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Log{config: c, queue: make(chan *exchange.Event, maxQueue), known: map[string]bool{}}
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
	var batch [][]byte
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
			if len(batch) >= maxBatch {
				l.unsent.Add(1)
			} else if text, err := encode(e, l.config.MaxEntryBytes); err == nil {
				batch = append(batch, text)
			}
		case <-tick.C:
			if len(batch) == 0 {
				continue
			}
			select {
			case batches <- batch:
				batch = nil
			default: // the one before is still under way
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
			if err != nil {
				l.unsent.Add(uint64(len(batch)))
			}
			l.failed(err)
		}
	}
}

// failed notes whether the other replicas can be told, and asked.
func (l *Log) failed(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if before := l.failure.Swap(&text); text != "" && (before == nil || *before != text) {
		l.config.Logger.Warn("console: the page shows what this replica decided, and not what others did", "error", text)
	}
}

// note is called with mu.
func (l *Log) note(e *exchange.Event) {
	if e.ID == "" || l.known[e.ID] {
		return
	}
	noted := entry{e, sizeOf(e)}
	l.entries = append(l.entries, noted)
	l.known[e.ID] = true
	l.bytes += noted.bytes
	forget := 0
	for ; len(l.entries)-forget > maxEvents || l.bytes > maxBytes; forget++ {
		l.bytes -= l.entries[forget].bytes
		delete(l.known, l.entries[forget].event.ID)
	}
	clear(l.entries[:forget])
	l.entries = l.entries[forget:]
}

// fetch reads what other replicas have decided since the last time, if that is a
// second ago. Nobody asks while nobody looks.
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
	for range 10 { // more than there can be
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
	entries := slices.Clone(l.entries)
	l.mu.Unlock()
	var found []*exchange.Event
	for i := range entries {
		if q.matches(entries[i].event) {
			found = append(found, entries[i].event)
		}
	}
	slices.SortStableFunc(found, func(a, b *exchange.Event) int { return a.Time.Compare(b.Time) })
	slices.Reverse(found)
	return found
}

// find returns the event with an id, or nil.
func (l *Log) find(id string) *exchange.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.entries {
		if l.entries[i].event.ID == id {
			return l.entries[i].event
		}
	}
	return nil
}

// encode writes the event for other replicas. One that is too long loses what makes
// it long; it can still be found, and explained by the audit log.
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
		short.Requested, short.Granted, short.Identity, short.Claimed, short.Gateway = nil, nil, nil, nil, nil
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

// sizeOf is about what an event takes up.
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
	return size
}
