package kubectl

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/transport/spdy"

	"github.com/pullpass/pullpass/internal/base/term"
)

// portForwardProtocol is the version of the protocol between clients and kubelets.
const portForwardProtocol = "portforward.k8s.io"

// dial connects to a port of a pod. client-go's portforward would listen on this machine, where all
// its users could reach the console for that time.
func (c *Cluster) dial(ctx context.Context, pod *corev1.Pod, port int32) (net.Conn, error) {
	address := c.core.Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("portforward").URL()
	transport, upgrader, err := c.upgrades()
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	connection, _, err := spdy.Negotiate(upgrader, &http.Client{Transport: transport}, request, portForwardProtocol)
	if transport.forbidden {
		return nil, c.missing("create", "pods", "portforward", pod.Namespace)
	}
	if err != nil {
		return nil, errors.New(term.Abbreviate(err.Error(), maxFaultBytes)) // it has the whole body of the response
	}
	context.AfterFunc(ctx, func() { _ = connection.Close() })
	open := func(kind string) (stream, error) {
		header := http.Header{}
		header.Set(corev1.StreamType, kind)
		header.Set(corev1.PortHeader, strconv.Itoa(int(port)))
		header.Set(corev1.PortForwardRequestIDHeader, "0")
		return connection.CreateStream(header)
	}
	faults, err := open(corev1.StreamTypeError)
	if err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	data, err := open(corev1.StreamTypeData)
	if err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	forwarded := &podConn{stream: data, connection: connection, fault: make(chan error, 1)}
	_ = faults.Close() // only the kubelet writes to it
	go func() {
		text, err := io.ReadAll(io.LimitReader(faults, maxFaultBytes))
		if len(text) > 0 {
			err = forwardError(text)
		}
		forwarded.fault <- err
	}()
	return forwarded, nil
}

// forwardError is what the kubelet says of a port-forward.
type forwardError string

func (e forwardError) Error() string { return "the port-forward: " + Plain(string(e)) }

const (
	maxFaultBytes = 4 << 10 // of an error text of others
	// faultWait is how long the reason for an end may come after it.
	faultWait = time.Second
)

// stream is one of the streams of a connection.
type stream interface {
	io.ReadWriteCloser
	Reset() error
}

// podConn is a connection to a port of a pod. Its deadlines have no effect: the context of dial
// ends it.
type podConn struct {
	stream
	connection io.Closer
	fault      chan error // of the kubelet, or nil
}

// Read reports why the kubelet ended the connection, such as a port on which no program listens.
func (p *podConn) Read(b []byte) (int, error) {
	n, err := p.stream.Read(b)
	if n > 0 || err == nil {
		return n, err
	}
	select {
	case fault := <-p.fault:
		if fault != nil {
			return 0, fault
		}
	case <-time.After(faultWait):
	}
	return 0, err
}

func (p *podConn) Close() error { return errors.Join(p.Reset(), p.connection.Close()) }

type podAddress struct{}

func (podAddress) Network() string { return "pod" }
func (podAddress) String() string  { return "pod" }

func (p *podConn) LocalAddr() net.Addr              { return podAddress{} }
func (p *podConn) RemoteAddr() net.Addr             { return podAddress{} }
func (p *podConn) SetDeadline(time.Time) error      { return nil }
func (p *podConn) SetReadDeadline(time.Time) error  { return nil }
func (p *podConn) SetWriteDeadline(time.Time) error { return nil }

// upgrade notes whether the API server forbids the request: the error of client-go is only text.
type upgrade struct {
	http.RoundTripper
	forbidden bool
}

func (u *upgrade) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := u.RoundTripper.RoundTrip(r)
	u.forbidden = err == nil && response.StatusCode == http.StatusForbidden
	return response, err
}

// upgrades returns a transport for one request that becomes a connection with streams.
func (c *Cluster) upgrades() (*upgrade, spdy.Upgrader, error) {
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	return &upgrade{RoundTripper: transport}, upgrader, err
}
