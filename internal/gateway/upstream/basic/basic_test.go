package basic

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/gateway/upstream"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins/loginstest"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

const robot = "acme-robot"

// A password is read again after some seconds, or when the registry refused it.
func TestAPasswordIsReadAgain(t *testing.T) {
	t.Parallel()
	now := time.Now()
	name := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		t.Helper()
		testkit.Must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	b := New(robot, name, func() time.Time { return now })
	if _, err := b.Login(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "the password of acme-robot: open ") {
		t.Errorf("without a file: %v", err)
	}
	expect := func(when, password string) upstream.Login {
		t.Helper()
		login, err := b.Login(t.Context(), "")
		if err != nil || login.Username != robot || login.Password.Reveal() != password {
			t.Errorf("%s: %s of %s, error %v; want %s", when, login.Password.Reveal(), login.Username, err, password)
		}
		return login
	}
	write("one\r\n")
	first := expect("at first", "one")
	write("two\n")
	now = now.Add(rereadAfter - 1)
	expect("a moment later", "one")
	b.Reject(upstream.Login{Username: robot, Password: registryauth.NewSecret("another")})
	expect("when another was refused", "one")
	b.Reject(first)
	second := expect("when it was refused", "two")
	write("three\n")
	now = now.Add(rereadAfter)
	expect("after some seconds", "three")
	b.Reject(second)
	for _, text := range []string{"", "\n"} {
		write(text)
		now = now.Add(rereadAfter)
		expect("while the file is empty", "three")
		if _, err := New(robot, name, nil).Login(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "is empty; write the password into it") {
			t.Errorf("an empty file: %v", err)
		}
	}
}

func TestCredential(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		Credential
		want string
	}{
		{Credential{robot, "f"}, ""},
		{Credential{"", "f"}, "username is not a user name"},
		{Credential{"a:b", "f"}, "username is not a user name"},
		{Credential{"a b", "f"}, "username is not a user name"},
		{Credential{robot, ""}, "passwordFile is missing"},
	} {
		if got := loginstest.FaultsOf(&c.Credential); (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.Credential, got, c.want)
		}
		if c.OfCaller() {
			t.Error("a password in a file is not the caller's")
		}
	}
}
