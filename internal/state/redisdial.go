package state

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/file"
)

// maxSecretBytes bounds files that are read for every connection.
const maxSecretBytes = 1 << 20

func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if number, numErr := strconv.ParseUint(port, 10, 16); err != nil || numErr != nil || host == "" || number == 0 {
		return fmt.Errorf("redis: address %.100q is not host:port", address)
	}
	return nil
}

// credentials returns the login of a new connection. Files are read each time, so a changed
// password takes effect without a restart. Open connections stay logged in.
func (c RedisConfig) credentials(context.Context) (username, password string, err error) {
	if c.PasswordFile == "" {
		return "", "", nil
	}
	data, err := file.Read(c.PasswordFile, maxSecretBytes)
	if err != nil {
		return "", "", fmt.Errorf("passwordFile: %w", err)
	}
	password = strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if password == "" {
		return "", "", fmt.Errorf("passwordFile: %s is empty", c.PasswordFile)
	}
	return c.Username, password, nil
}

// dialer returns a function that connects, to Redis or to a Sentinel.
func (c RedisConfig) dialer(timeout time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		// go-redis dials nodes of a Cluster without a time limit.
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		dial := c.Dial
		if dial == nil {
			dial = (&net.Dialer{}).DialContext
		}
		if c.TLS == nil {
			return dial(ctx, network, address)
		}
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
		if c.TLS.CAFile != "" {
			data, err := file.Read(c.TLS.CAFile, maxSecretBytes)
			if err != nil {
				return nil, fmt.Errorf("tls.caFile: %w", err)
			}
			config.RootCAs = x509.NewCertPool()
			if !config.RootCAs.AppendCertsFromPEM(data) {
				return nil, fmt.Errorf("tls.caFile: %s holds no certificate in PEM", c.TLS.CAFile)
			}
		}
		raw, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conn := tls.Client(raw, config)
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		return conn, nil
	}
}
