package tokensecrets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

const (
	// memoryName is the name of the ConfigMap. The manifest creates it: this controller may read
	// and update this ConfigMap, and may not create any.
	memoryName = "pullpass-pull-secrets"
	memoryKey  = "tokens.json"

	// maxRemembered bounds the ConfigMap to 1 MiB, the limit of the API. An entry has at most 120
	// bytes.
	maxRemembered = 8000

	// memoryBytesPerSecond bounds the rate of writes to the ConfigMap. A small one is written after
	// a second, one of 5,000 tokens every minute. The next leader renews tokens that were not
	// written before a crash.
	memoryBytesPerSecond = 10 << 10
)

// memory is the data that one leader leaves to the next: when the token in each Secret was issued,
// with which key, and the version of the Secret then. It contains no token.
//
// It is stored in a ConfigMap in the controller's own namespace. The controller cannot read
// Secrets, and the owners of a Secret may write anything into it. memory is safe for concurrent
// use.
type memory struct {
	client    rest.Interface // of v1
	namespace string
	now       func() time.Time

	mu      sync.Mutex
	tokens  map[types.UID]noted // by the UID of the Secret
	changed bool                // since the last store
}

// remembered is the JSON in the ConfigMap.
type remembered struct {
	Content string                        `json:"content"` // settings.content
	Keys    []string                      `json:"keys"`    // kid
	Tokens  map[types.UID]rememberedToken `json:"tokens"`
}

type rememberedToken struct {
	Issued  int64  `json:"i"` // Unix time
	Seconds int64  `json:"s"` // lifetime
	Key     int    `json:"k"` // index of Keys
	Version string `json:"v"`
}

var errDamaged = errors.New("what is stored cannot be read")

// find returns the record of the token in a Secret. It is zero if there is none.
func (m *memory) find(secret types.UID) noted {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tokens[secret]
}

func (m *memory) note(secret types.UID, n noted) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tokens[secret], m.changed = n, true
}

// load clears the memory, then reads the stored records for the same content. After an error, the
// memory is empty.
func (m *memory) load(ctx context.Context, content string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tokens, m.changed = map[types.UID]noted{}, false
	var stored corev1.ConfigMap
	if err := m.request(m.client.Get()).Do(ctx).Into(&stored); err != nil {
		return m.wrap(err)
	}
	text := stored.Data[memoryKey]
	if text == "" {
		return nil
	}
	var r remembered
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return m.wrap(fmt.Errorf("%w: %s: %w", errDamaged, memoryKey, err))
	}
	if r.Content != content {
		return nil
	}
	for secret, t := range r.Tokens {
		issued := time.Unix(t.Issued, 0).UTC()
		lives := time.Duration(t.Seconds) * time.Second
		// A time in the future or a long lifetime must not delay the renewal.
		if t.Key < 0 || t.Key >= len(r.Keys) || issued.After(m.now().Add(maxSkew)) || lives > 2*lifetime {
			continue
		}
		m.tokens[secret] = noted{keyID: r.Keys[t.Key], issued: issued, expires: issued.Add(lives), version: t.Version}
	}
	return nil
}

// store writes the records of tokens that have not expired. It returns the number of bytes; 0 means
// no change.
func (m *memory) store(ctx context.Context, content string) (int, error) {
	m.mu.Lock()
	if !m.changed {
		m.mu.Unlock()
		return 0, nil
	}
	m.changed = false
	r := remembered{Content: content, Keys: []string{}, Tokens: map[types.UID]rememberedToken{}}
	keys, now := map[string]int{}, m.now()
	for secret, n := range m.tokens {
		if !now.Before(n.expires) {
			delete(m.tokens, secret)
			continue
		}
		if len(r.Tokens) == maxRemembered {
			continue
		}
		key, ok := keys[n.keyID]
		if !ok {
			key = len(r.Keys)
			keys[n.keyID], r.Keys = key, append(r.Keys, n.keyID)
		}
		r.Tokens[secret] = rememberedToken{n.issued.Unix(), int64(n.expires.Sub(n.issued) / time.Second), key, n.version}
	}
	m.mu.Unlock()
	text, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	// Keep data that others have written, such as Helm's labels.
	var stored corev1.ConfigMap
	if err = m.request(m.client.Get()).Do(ctx).Into(&stored); err == nil {
		stored.Data = map[string]string{memoryKey: string(text)}
		err = m.request(m.client.Put()).Body(&stored).Do(ctx).Error()
	}
	if err != nil {
		m.mu.Lock()
		m.changed = true
		m.mu.Unlock()
		return 0, m.wrap(err)
	}
	return len(text), nil
}

func (m *memory) request(r *rest.Request) *rest.Request {
	return r.Namespace(m.namespace).Resource("configmaps").Name(memoryName)
}

func (m *memory) wrap(err error) error {
	return fmt.Errorf("the ConfigMap %s/%s, from which the next leader knows when tokens are due: %w", m.namespace, memoryName, err)
}

// keep stores changes until ctx ends, and once more after that.
func (m *memory) keep(ctx context.Context, content string, log *slog.Logger) {
	store := func(ctx context.Context) time.Duration {
		ctx, cancel := context.WithTimeout(ctx, syncTimeout)
		defer cancel()
		size, err := m.store(ctx, content)
		if err != nil && ctx.Err() == nil {
			log.Warn("what is known of tokens is not stored", "error", err)
			return time.Minute
		}
		return max(time.Second, time.Duration(size)*time.Second/memoryBytesPerSecond)
	}
	for {
		select {
		case <-time.After(store(ctx)):
		case <-ctx.Done():
			store(context.WithoutCancel(ctx))
			return
		}
	}
}
