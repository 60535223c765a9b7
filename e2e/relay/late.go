package relay

import (
	"bytes"
	"net"
	"time"
)

// late is a connection on which what is written arrives later, by the delay of its relay.
type late struct {
	net.Conn
	relay   *Relay
	paid    time.Time // when what was written has passed the limit
	queue   chan parcel
	written chan struct{} // closed when nothing is under way any more
}

// oversleep is by how much a machine that is busy may sleep too long without the limit becoming lower.
const oversleep = 100 * time.Millisecond

type parcel struct {
	content []byte
	due     time.Time
}

func (r *Relay) startLate(conn net.Conn) *late {
	l := &late{Conn: conn, relay: r, queue: make(chan parcel, 1024), written: make(chan struct{})}
	go func() {
		defer close(l.written)
		for p := range l.queue {
			time.Sleep(time.Until(p.due))
			_, _ = l.Conn.Write(p.content) // the reader of a connection notices that it is closed
		}
		_ = l.Conn.Close()
	}()
	return l
}

// Write returns at once, unless there is a limit. Only one goroutine writes, and none after Close.
func (l *late) Write(b []byte) (int, error) {
	l.relay.mu.Lock()
	delay, rate := l.relay.delay, l.relay.rate
	l.relay.mu.Unlock()
	if rate > 0 {
		if idle := time.Now().Add(-oversleep); l.paid.Before(idle) {
			l.paid = idle
		}
		l.paid = l.paid.Add(time.Duration(len(b)) * time.Second / time.Duration(rate))
		time.Sleep(time.Until(l.paid))
	}
	l.queue <- parcel{bytes.Clone(b), time.Now().Add(delay)}
	return len(b), nil
}

// Close closes the connection when all has arrived.
func (l *late) Close() error {
	close(l.queue)
	return nil
}
