package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/test/proxytest"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

// searchAudit runs pullpass audit on the log of the script and returns the
// minutes of what it found, with a mark on what is only claimed.
func searchAudit(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), append([]string{"audit"}, args...), strings.NewReader(proxytest.ScriptFile(t, "audit.log")), &stdout, &stderr); code != 0 {
		t.Errorf("%q: exit code %d: %s", args, code, &stderr)
	}
	var found []string
	for row := range strings.Lines(stdout.String()) {
		moment, rest, _ := strings.Cut(row, "Z  ")
		if moment == row {
			continue // the head
		}
		found = append(found, strings.TrimPrefix(moment, "2026-03-"))
		if strings.Contains(rest, "claimed") {
			found[len(found)-1] += " claimed"
		}
	}
	if none := strings.Contains(stderr.String(), "no audit event was found"); none != (len(found) == 0) {
		t.Errorf("%q: found %q, standard error: %s", args, found, &stderr)
	}
	return strings.Join(found, ", ")
}

func TestAuditSearch(t *testing.T) {
	t.Parallel()
	const token = "63ef7a8c-1d81-4c97-8f89-724a51634a91"
	for _, c := range []struct {
		args string
		want string
	}{
		{"--token-id " + token, "01T09:00:00, 01T09:00:01, 01T11:30:00, 02T00:00:00 claimed"},
		{"--token-id JTI=" + token, "01T09:00:00, 01T09:00:01, 01T11:30:00, 02T00:00:00 claimed"},
		{"--token-id 63ef7a8c", ""},
		{"--token-id Y7SNSJQZ3ZQKPOUV4BAWOTKXPA", "01T09:00:00"}, // that was issued
		{"--repository team-a/tools", "01T09:00:01"},
		{"--repository team-a/we", ""},
		{"--repository catalog", ""}, // registry:catalog:* is not a repository
		{"--pod prod-eu/team-a/web-5c9f-x2x7q", "01T09:00:00, 01T09:00:01, 01T11:30:00, 02T00:00:00 claimed"},
		{"--pod 0b5f7c0e-54ad-4d2f-a6a5-0f9e6f0b7d11", "01T09:00:00, 01T09:00:01, 01T11:30:00"},
		{"--pod prod-us/team-a/web-5c9f-x2x7q", "01T10:00:00"},
		{"--pod prod-eu/team-b/web-5c9f-x2x7q", ""},
		{"--pod prod-eu/team-a/web", ""},
		{"--service-account prod-eu/team-a/web", "01T09:00:00, 01T09:00:01, 01T11:30:00, 02T00:00:00 claimed"},
		{"--service-account prod-us/team-a/web", "01T10:00:00"},
		{"--service-account prod-eu/old/builder", "01T11:00:00 claimed"},
		{"--service-account prod-eu/old/web", ""},
		{"--service-account prod-eu/team-a/web --since 2026-03-01T09:00:01Z --until 2026-03-02T00:00:00Z", "01T09:00:01, 01T11:30:00"},
		{"--project github/123456789", "05T09:00:00, 05T09:00:01"}, // of a refused token, only the name of the identity is known
		{"--project gitlab/123456789", ""},
		{"--run github/9876543211", "05T09:00:01"},
		{"--token-id U7QPZ4E6BTF2OMWKLLIJSK3RVA", "05T09:00:01"}, // of a push credential
		{"--project mesh/spiffe://mesh.example.com/team-a/web", "05T09:00:03"},
		{"--since 2026-03-01T12:30:00+01:00 --until 2026-03-02T00:00:01Z", "01T11:30:00, 02T00:00:00 claimed"}, // times are compared, not texts
		{"--until 2026-03-01T09:00:00Z", ""},
		{"--token-id " + token + " --repository team-a/tools", "01T09:00:01"},
		{"--token-id " + token + " --pod prod-us/team-a/web-5c9f-x2x7q", ""},
	} {
		if got := searchAudit(t, strings.Fields(c.args)...); got != c.want {
			t.Errorf("%s: found %q, want %q", c.args, got, c.want)
		}
	}
}

// How long ago is counted from now.
func TestAuditSearchSince(t *testing.T) {
	t.Parallel()
	if got := searchAudit(t, "--since", "1s"); got != "" {
		t.Errorf("within a second: %q", got)
	}
	if got := searchAudit(t, "--until", "1s", "--repository", "team-a/tools"); got != "01T09:00:01" {
		t.Errorf("before the last second: %q", got)
	}
}

// A mistake must not look like an answer, least of all a variable that is not set.
func TestAuditSearchRefusesWhatItCannotUnderstand(t *testing.T) {
	t.Parallel()
	const usePod, useAccount, useTime = "is not CLUSTER/NAMESPACE/NAME or a UID", "is not CLUSTER/NAMESPACE/NAME\n", "is neither a time, such as 2026-03-01T15:04:05Z, nor how long ago, such as 90m"
	for flag, values := range map[string]map[string]string{
		"token-id":        {"": "--token-id is empty; leave it out to search without it", "JTI=": `--token-id "JTI=" names no token`},
		"repository":      {"": "--repository is empty"},
		"pod":             {"": "--pod is empty", "team-a/web": usePod, "a/b/c/d": usePod, "prod-eu//web": usePod},
		"service-account": {"": "--service-account is empty", "web": useAccount, "prod-eu//web": useAccount},
		"project":         {"": "--project is empty", "github": `--project "github" is not IDENTITY/ID`, "/42": "is not IDENTITY/ID", "github/": "is not IDENTITY/ID"},
		"run":             {"": "--run is empty", "1001": `--run "1001" is not IDENTITY/ID`},
		"since":           {"": "--since is empty", "yesterday": useTime, "-5m": useTime, "2026-03-01": useTime},
		"until":           {"": "--until is empty", "tomorrow": useTime},
		"output":          {"yaml": `--output "yaml" is not known: use table or json`, "": `--output "" is not known`},
	} {
		for value, want := range values {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), []string{"audit", "--" + flag + "=" + value}, strings.NewReader(proxytest.GoodLine+"\n"), &stdout, &stderr)
			if code != 1 || !strings.Contains(stderr.String(), want) || !strings.HasPrefix(stderr.String(), "pullpass: --"+flag) || stdout.Len() > 0 {
				t.Errorf("--%s=%q: exit code %d, %q; want %q", flag, value, code, stderr.String(), want)
			}
		}
	}
}

// Ctrl-C ends a search that waits for more.
func TestAuditSearchCanBeInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	in, writer := io.Pipe()
	defer writer.Close()
	ended := make(chan int)
	go func() { ended <- run(ctx, []string{"audit"}, in, io.Discard, io.Discard) }()
	testkit.Value(io.WriteString(writer, proxytest.GoodLine+"\n"))(t)
	cancel()
	if code := <-ended; code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

// A file that cannot be read to its end is named.
func TestAuditSearchNamesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	packed := proxytest.Compressed(t, proxytest.GoodLine+"\n")
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"audit"}, strings.NewReader(packed[:len(packed)-1]), &stdout, &stderr)
	if code != 1 || !strings.Contains(stderr.String(), "pullpass: standard input: unexpected EOF") || !strings.Contains(stdout.String(), "2026-03-01T09:00:00Z") {
		t.Errorf("exit code %d\n%s%s", code, &stdout, &stderr)
	}
}
