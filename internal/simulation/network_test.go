package simulation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// network connects hosts by their names, in memory. Virtual time passes while all wait for it.
type network struct {
	mu        sync.Mutex
	listeners map[string]*listener // by host:port
	links     map[link]*fault
	conns     []*conn // of clients
	ports     int
	steps     map[string]int // that a host has left before it dies; missing: it lives
}

// link names two hosts, the client first.
type link struct{ from, to string }

// fault is the fault of a link. The zero fault is none.
type fault struct {
	lost    bool          // nothing arrives: data waits, as TCP sends it again
	refused bool          // new connections are refused
	delay   time.Duration // of each piece
}

func newNetwork() *network {
	return &network{listeners: map[string]*listener{}, links: map[link]*fault{}, steps: map[string]int{}}
}

// set changes the faults of a link. Data that was lost arrives after that.
func (n *network) set(l link, f fault) {
	n.mu.Lock()
	n.links[l] = &f
	conns := slices.Clone(n.conns)
	n.mu.Unlock()
	for _, c := range conns {
		if c.link == l && !f.lost {
			c.in.release()
			c.out.release()
		}
	}
}

func (n *network) fault(l link) fault {
	n.mu.Lock()
	defer n.mu.Unlock()
	if f := n.links[l]; f != nil {
		return *f
	}
	return fault{}
}

// doom lets a host die after a number of writes to its connections, so between any two steps of what it does.
func (n *network) doom(host string, steps int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.steps[host] = steps
}

// isDead reports whether a host has no steps left.
func (n *network) isDead(host string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	left, isDoomed := n.steps[host]
	return isDoomed && left == 0
}

// lives counts a step of a host.
func (n *network) lives(host string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	left, isDoomed := n.steps[host]
	if isDoomed {
		n.steps[host] = max(0, left-1)
	}
	return !isDoomed || left > 0
}

// cut resets the connections that a link, or any link of a host, has.
func (n *network) cut(which func(link) bool) {
	n.mu.Lock()
	conns := slices.Clone(n.conns)
	n.mu.Unlock()
	for _, c := range conns {
		if which(c.link) {
			c.in.end(syscall.ECONNRESET)
			c.out.end(syscall.ECONNRESET)
		}
	}
}

// dialer returns the DialContext of a host.
func (n *network) dialer(from, ip string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, _, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		l := link{from, host}
		refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // as net.Dialer's where this stands in for one
		defer cancel()
		for n.fault(l).lost {
			select {
			case <-ctx.Done():
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
			case <-time.After(time.Second): // SYN is sent again
			}
		}
		n.mu.Lock()
		listening := n.listeners[address]
		n.ports++
		at := &net.TCPAddr{IP: net.ParseIP(ip), Port: 1024 + n.ports%60000}
		n.mu.Unlock()
		if listening == nil || n.fault(l).refused {
			return nil, refused
		}
		a, b := newPipe(n, l), newPipe(n, l)
		client := &conn{network: n, host: from, link: l, in: a, out: b, local: at, remote: listening.address}
		server := &conn{network: n, host: host, link: l, in: b, out: a, local: listening.address, remote: at}
		n.mu.Lock()
		n.conns = append(slices.DeleteFunc(n.conns, func(c *conn) bool { return c.in.isEnded() && c.out.isEnded() }), client)
		n.mu.Unlock()
		select {
		case listening.accept <- server:
			return client, nil
		case <-listening.closed:
			return nil, refused
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// listen takes the connections to a host and port.
func (n *network) listen(host, port string) (net.Listener, error) {
	l := &listener{network: n, name: host + ":" + port, address: &net.TCPAddr{IP: net.IPv4(10, 255, 0, 1), Port: 443}, accept: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[l.name] != nil {
		return nil, fmt.Errorf("%s: %w", l.name, syscall.EADDRINUSE)
	}
	n.listeners[l.name] = l
	return l, nil
}

type listener struct {
	network *network
	name    string
	address net.Addr
	accept  chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.network.mu.Lock()
		delete(l.network.listeners, l.name)
		l.network.mu.Unlock()
	})
	return nil
}

func (l *listener) Addr() net.Addr { return l.address }

// pipe is one direction of a connection.
type pipe struct {
	network *network
	link    link

	mu       sync.Mutex
	changed  *sync.Cond
	data     []byte
	held     []byte // lost on the way so far
	flying   []piece
	last     time.Time // when the last of them arrives
	finished bool      // the writer closed it; lost on the way so far
	ended    error
	deadline [2]time.Time // of the reader and of the writer
}

const pipeBytes = 1 << 20

func newPipe(n *network, l link) *pipe {
	p := &pipe{network: n, link: l}
	p.changed = sync.NewCond(&p.mu)
	return p
}

func (p *pipe) write(data []byte) (int, error) {
	f := p.network.fault(p.link)
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.ended == nil && len(p.data)+len(p.held) > pipeBytes && !p.isPast(1) {
		p.changed.Wait()
	}
	switch {
	case p.isPast(1):
		return 0, os.ErrDeadlineExceeded
	case errors.Is(p.ended, io.EOF):
		return 0, syscall.EPIPE
	case f.lost && !errors.Is(p.ended, syscall.ECONNRESET):
		p.held = append(p.held, data...)
	case p.ended != nil:
		return 0, p.ended
	case f.delay > 0 || len(p.flying) > 0:
		if at := time.Now().Add(f.delay); at.After(p.last) {
			p.last = at
		}
		p.flying = append(p.flying, piece{p.last, slices.Clone(data)})
		time.AfterFunc(time.Until(p.last), p.arrive)
	default:
		p.data = append(p.data, data...)
		p.changed.Broadcast()
	}
	return len(data), nil
}

// piece is data that is late.
type piece struct {
	at   time.Time
	data []byte
}

// arrive delivers in order what is due.
func (p *pipe) arrive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.flying) > 0 && !time.Now().Before(p.flying[0].at) {
		p.data = append(p.data, p.flying[0].data...)
		p.flying = p.flying[1:]
	}
	p.finish()
	p.changed.Broadcast()
}

func (p *pipe) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.data, p.held = append(p.data, p.held...), nil
	p.finish()
	p.changed.Broadcast()
}

// finish ends a pipe that was closed before all of its data had arrived.
func (p *pipe) finish() {
	if p.finished && p.ended == nil && len(p.flying)+len(p.held) == 0 {
		p.ended = io.EOF
	}
}

func (p *pipe) read(into []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.data) == 0 && p.ended == nil && !p.isPast(0) {
		p.changed.Wait()
	}
	switch {
	case p.isPast(0):
		return 0, os.ErrDeadlineExceeded
	case p.ended != nil && (len(p.data) == 0 || !errors.Is(p.ended, io.EOF)):
		return 0, p.ended
	}
	count := copy(into, p.data)
	if p.data = p.data[count:]; len(p.data) == 0 {
		p.data = nil
	}
	p.changed.Broadcast()
	return count, nil
}

// end lets the reader see why there is no more. Data on its way is gone, except before an orderly end.
func (p *pipe) end(why error) {
	lost := p.network.fault(p.link).lost
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended != nil:
		return
	case errors.Is(why, io.EOF) && (lost || len(p.flying) > 0):
		p.finished = true
		return
	}
	p.ended = why
	p.changed.Broadcast()
}

func (p *pipe) isEnded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended != nil
}

func (p *pipe) isPast(which int) bool {
	d := p.deadline[which]
	return !d.IsZero() && !time.Now().Before(d)
}

func (p *pipe) setDeadline(which int, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline[which] = at
	p.changed.Broadcast()
	if !at.IsZero() && time.Now().Before(at) {
		time.AfterFunc(time.Until(at), func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.changed.Broadcast()
		})
	}
}

// conn is one end of a connection.
type conn struct {
	network       *network
	host          string // whose end it is
	link          link
	in, out       *pipe
	local, remote net.Addr
	mu            sync.Mutex
	closed        bool
}

func (c *conn) Read(p []byte) (int, error) { return c.in.read(p) }

func (c *conn) Write(p []byte) (int, error) {
	if !c.network.lives(c.host) {
		return 0, syscall.ECONNRESET
	}
	return c.out.write(p)
}

func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	c.out.end(io.EOF)
	c.in.end(net.ErrClosed)
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	c.in.setDeadline(0, t)
	c.out.setDeadline(1, t)
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error  { c.in.setDeadline(0, t); return nil }
func (c *conn) SetWriteDeadline(t time.Time) error { c.out.setDeadline(1, t); return nil }
