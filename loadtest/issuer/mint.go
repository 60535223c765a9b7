package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/loadtest/fleet"
)

// token is what a kubelet holds for one of its pods.
type token struct {
	Token          string `json:"token"`
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount"`
}

// mint signs the tokens of pods. Like a kubelet, it keeps the token of a pod until 80 % of its life are over; other than a
// kubelet, it signs anew as soon as there is a new key. It is safe for concurrent use.
type mint struct {
	keys          *keys
	url, audience string
	lifetime      time.Duration

	mu   sync.Mutex
	kept map[int]keptToken // by the number of the pod
}

type keptToken struct {
	token
	keyID string
	made  time.Time
}

func newMint(k *keys, url, audience string, lifetime time.Duration) *mint {
	return &mint{keys: k, url: url, audience: audience, lifetime: lifetime, kept: map[int]keptToken{}}
}

// token returns the token of a pod. An age makes it older than it is; it is not kept then.
func (m *mint) token(number int, age time.Duration) (token, error) {
	key, now := m.keys.signing(), time.Now()
	if age != 0 {
		return m.sign(number, key, now.Add(-age))
	}
	m.mu.Lock()
	kept, ok := m.kept[number]
	m.mu.Unlock()
	if ok && kept.keyID == key.KeyID && now.Sub(kept.made) < m.lifetime*8/10 {
		return kept.token, nil
	}
	signed, err := m.sign(number, key, now)
	if err != nil {
		return token{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept[number] = keptToken{signed, key.KeyID, now}
	return signed, nil
}

func (m *mint) sign(number int, key jose.JSONWebKey, now time.Time) (token, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, nil) // no typ in the header, as from an API server
	if err != nil {
		return token{}, err
	}
	pod := fleet.PodOf(number)
	claims, err := json.Marshal(m.claims(pod, now))
	if err != nil {
		return token{}, err
	}
	signed, err := signer.Sign(claims)
	if err != nil {
		return token{}, err
	}
	compact, err := signed.CompactSerialize()
	if err != nil {
		return token{}, err
	}
	return token{compact, pod.Namespace, pod.ServiceAccount}, nil
}

// claims are those of a token that a kubelet gets for a pod.
func (m *mint) claims(pod fleet.Pod, now time.Time) map[string]any {
	object := func(kind, name string) map[string]string {
		hash := sha256.Sum256([]byte(kind + " " + name)) // the same object has the same UID; fleet's names are unique
		return map[string]string{"name": name, "uid": uuid(hash[:])}
	}
	var id [16]byte
	rand.Read(id[:]) // never fails
	return map[string]any{
		"iss": m.url,
		"sub": "system:serviceaccount:" + pod.Namespace + ":" + pod.ServiceAccount,
		"aud": []string{m.audience},
		"exp": now.Add(m.lifetime).Unix(), "iat": now.Unix(), "nbf": now.Unix(),
		"jti": uuid(id[:]),
		"kubernetes.io": map[string]any{
			"namespace":      pod.Namespace,
			"serviceaccount": object("serviceaccount", pod.ServiceAccount),
			"pod":            object("pod", pod.Name),
			"node":           object("node", pod.Node),
		},
	}
}

// uuid writes 16 bytes as the UID of an object.
func uuid(b []byte) string {
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80 // RFC 9562: version 4, variant
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
