package upstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	maxPasswordBytes = 16 << 10
	// rereadAfter is the maximum age of the content of a password file. Requests share one read of
	// the file in this time.
	rereadAfter = 10 * time.Second
)

// basic gives every caller the login of a robot account. If the password cannot be read, the last
// one that could be read stays in use, because a volume is swapped in two steps. Without one, Login
// returns an error.
type basic struct {
	username string
	file     string
	now      func() time.Time

	mu       sync.Mutex
	password registryauth.Secret
	readAt   time.Time
}

// NewBasic returns the login of a user whose password is in a file. Changes of the file are
// followed. now nil means time.Now.
func NewBasic(username, passwordFile string, now func() time.Time) Logins {
	if now == nil {
		now = time.Now
	}
	return &basic{username: username, file: passwordFile, now: now}
}

func (b *basic) Login(context.Context, string) (Login, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.now(); b.readAt.IsZero() || now.Sub(b.readAt) >= rereadAfter {
		password, err := readPassword(b.file)
		if err != nil && b.password.IsZero() {
			return Login{}, fmt.Errorf("the password of %s: %w", b.username, err)
		}
		if err == nil {
			b.password = password
		}
		b.readAt = now
	}
	return Login{Username: b.username, Password: b.password}, nil
}

// Reject makes the next Login read the file again.
func (b *basic) Reject(login Login) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.password.Hash() == login.Password.Hash() {
		b.readAt = time.Time{}
	}
}

func readPassword(name string) (registryauth.Secret, error) {
	data, err := file.Read(name, maxPasswordBytes)
	if err != nil {
		return registryauth.Secret{}, err
	}
	password := strings.TrimRight(string(data), "\r\n")
	if password == "" {
		return registryauth.Secret{}, errors.New(name + " is empty; write the password into it")
	}
	return registryauth.NewSecret(password), nil
}
