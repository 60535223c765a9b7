// Package basic gives every caller the login of a robot account, with the password in a file.
package basic

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pullpass/pullpass/internal/base/file"
	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	maxPasswordBytes = 16 << 10
	// rereadAfter is the maximum age of the content of a password file. Requests share one read of
	// the file in this time.
	rereadAfter = 10 * time.Second
)

// Credential is a user name and password, for registries with Basic or with a
// token endpoint.
type Credential struct {
	Username     string `json:"username" schema:"required nonempty"`     // of a robot, or the name that belongs to an access token
	PasswordFile string `json:"passwordFile" schema:"required nonempty"` // read again when it changes
}

func (*Credential) OfCaller() bool { return false }

func (c *Credential) Validate(v logins.Validator) {
	if c.Username == "" || strings.ContainsAny(c.Username, ":\r\n") || !names.IsVisible(c.Username) {
		v.Fault("username", "is not a user name (%s); write it without colon and spaces", term.QuoteValue(c.Username))
	}
	if c.PasswordFile == "" {
		v.Fault("passwordFile", "is missing; name the file with the password")
	}
}

// Check reads the password.
func (c *Credential) Check() error {
	_, err := readPassword(c.PasswordFile)
	return err
}

func (c *Credential) Open(logins.Service) (upstream.Logins, error) {
	return New(c.Username, c.PasswordFile, nil), nil
}

// basic is a user whose password is in a file. If the password cannot be read, the last
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

// New returns the login of a user whose password is in a file. Changes of the file are
// followed. now nil means time.Now.
func New(username, passwordFile string, now func() time.Time) upstream.Logins {
	if now == nil {
		now = time.Now
	}
	return &basic{username: username, file: passwordFile, now: now}
}

func (b *basic) Login(context.Context, string) (upstream.Login, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.now(); now.Sub(b.readAt) >= rereadAfter {
		password, err := readPassword(b.file)
		if err != nil && b.password.IsZero() {
			return upstream.Login{}, fmt.Errorf("the password of %s: %w", b.username, err)
		}
		if err == nil {
			b.password = password
		}
		b.readAt = now
	}
	return upstream.Login{Username: b.username, Password: b.password}, nil
}

// Reject makes the next Login read the file again.
func (b *basic) Reject(login upstream.Login) {
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
