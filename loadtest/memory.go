package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	identities = 100_000
	// containerMemory is the limit of the chart's pods. Pullpass lets Go use nine tenths of a container's memory; here it is
	// in none, and is told.
	containerMemory = 256 << 20
	crowdIssuer     = "https://crowd.example.com"
)

// crowds are pods by the length of their names.
var crowds = []struct {
	name string
	pod  func(number int) (namespace, account, pod, node string)
}{
	{"usual names", func(n int) (string, string, string, string) {
		return fmt.Sprintf("team-%04d-production", n%5000), fmt.Sprintf("payment-service-worker-%05d", n%20000),
			fmt.Sprintf("payment-service-worker-%05d-7d9c8b6f5d-%05x", n%20000, n), fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", n%5000/250, n%250)
	}},
	{"longest names", func(n int) (string, string, string, string) {
		long := func(prefix string, number, length int) string {
			text := fmt.Sprintf("%s-%d-", prefix, number)
			return text + strings.Repeat("x", length-len(text))
		}
		return long("team", n%5000, 63), long("app", n%20000, 253), long("pod", n, 253), long("node", n%5000, 253)
	}},
}

// memory lets as many pods pull as a large cluster has, once each, and judges how much memory Pullpass holds then.
func memory(ctx context.Context, o options, stderr io.Writer) (results []result, err error) {
	signer, files, err := newCrowdIssuer()
	if err != nil {
		return nil, err
	}
	for i, crowd := range crowds {
		s, err := openSite(ctx, o, variant{
			plainHTTP: true, perServiceAccount: 100_000,
			env:      []string{fmt.Sprintf("GOMEMLIMIT=%dB", containerMemory/10*9)},
			clusters: crowdCluster,
			files:    files,
		})
		if err != nil {
			return nil, err
		}
		r, err := s.crowd(ctx, func(n int) (string, error) { return crowdRequest(signer, i, n) })
		if err := errors.Join(err, s.close()); err != nil {
			return nil, err
		}
		r.name = "memory: " + crowd.name
		fmt.Fprintf(stderr, "  %s: %s\n", r.name, r.note)
		results = append(results, *r)
	}
	return results, nil
}

// crowd sends a request for each pod.
func (s *site) crowd(ctx context.Context, request func(number int) (string, error)) (*result, error) {
	client := *s.client
	transport := s.client.Transport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = comparedClients
	client.Transport = transport
	defer client.CloseIdleConnections()
	c := &contender{process: s.pullpass, url: s.tokens + "/token"}
	requests := make([]string, comparedAtOnce)
	for from := 0; from < identities; from += len(requests) {
		for i := range requests {
			var err error
			if requests[i], err = request(from + i); err != nil {
				return nil, err
			}
		}
		if err := c.exchange(ctx, &client, requests); err != nil {
			return nil, err
		}
	}
	last, err := s.sample(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	r := c.result("")
	r.note = fmt.Sprintf("%d identities, %.0f MiB resident at their end", identities, last.resident/(1<<20))
	if r.peak > containerMemory {
		r.faults = append(r.faults, fmt.Sprintf("%.0f MiB were resident, and the chart allows %d", r.peak/(1<<20), containerMemory>>20))
	}
	return &r, nil
}

// crowdCluster is that of crowds, in the configuration.
const crowdCluster = "- {name: crowd, issuer: \"" + crowdIssuer + "\", audiences: [registry.example.com], discovery: {jwksFile: crowd.json}}\n"

// newCrowdIssuer returns who signs the tokens of crowds, and the files that the cluster has of it.
func newCrowdIssuer() (jose.Signer, map[string][]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader) // costs less than RSA, and Pullpass remembers the same
	if err != nil {
		return nil, nil, err
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "crowd", Algorithm: string(jose.ES256)}}})
	if err != nil {
		return nil, nil, err
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "crowd"}}, nil)
	return signer, map[string][]byte{"crowd.json": keys}, err
}

// crowdRequest is what a node sends for a pod of a crowd.
func crowdRequest(signer jose.Signer, crowd, number int) (string, error) {
	namespace, account, pod, node := crowds[crowd].pod(number)
	object := func(name string) map[string]string {
		return map[string]string{"name": name, "uid": fmt.Sprintf("%08x-89ab-4cde-8f01-%012x", number, number)}
	}
	now := time.Now().Unix()
	claims, err := json.Marshal(map[string]any{
		"iss": crowdIssuer, "aud": []string{"registry.example.com"}, "sub": "system:serviceaccount:" + namespace + ":" + account,
		"iat": now, "nbf": now, "exp": now + 3600, "jti": fmt.Sprintf("63ef7a8c-1d81-4c97-8f89-%012d", number),
		"kubernetes.io": map[string]any{"namespace": namespace, "serviceaccount": object(account), "pod": object(pod), "node": object(node)},
	})
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(claims)
	if err != nil {
		return "", err
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		return "", err
	}
	return url.Values{
		"client_id": {"containerd-client"}, "grant_type": {"password"}, "password": {token},
		"scope": {"repository:" + namespace + "/app:pull"}, "service": {"registry.example.com"}, "username": {"serviceaccount"},
	}.Encode(), nil
}
