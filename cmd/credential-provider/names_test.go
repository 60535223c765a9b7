package main

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// CRI-O has the file before for some seconds, and would find the registry itself.
func TestFreshHosts(t *testing.T) {
	t.Parallel()
	const good = "10.0.0.5 gateway.example.com ghcr.io\n"
	dir := t.TempDir()
	hosts, link := filepath.Join(dir, "hosts"), filepath.Join(dir, "link")
	testkit.Write(t, dir, "new", good)
	old := time.Now().Add(-time.Hour)
	testkit.Must(t, os.Chtimes(filepath.Join(dir, "new"), old, old))
	testkit.Must(t, os.Rename(filepath.Join(dir, "new"), hosts)) // as rsync and "cp -p" keep the time of the content
	ofFile := changed(testkit.Value(os.Lstat(hosts))(t))
	for {
		testkit.Must(t, os.Symlink("hosts", link))
		if changed(testkit.Value(os.Lstat(link))(t)).After(ofFile) {
			break // after a tick of the kernel's clock
		}
		testkit.Must(t, os.Remove(link))
	}
	check := func(name string, now time.Time, want error) {
		t.Helper()
		if err := verifyHosts(name, now, func(string) string { return "" }, "ghcr.io", "gateway.example.com"); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", filepath.Base(name), err, want)
		}
	}
	check(hosts, ofFile, errFresh)
	check(hosts, ofFile.Add(hostsAge-1), errFresh)
	check(hosts, ofFile.Add(hostsAge), nil)
	check(hosts, ofFile.Add(1-hostsAge), errFresh) // the clock was set back a little
	check(hosts, ofFile.Add(-hostsAge), nil)       // by any time

	ofLink := changed(testkit.Value(os.Lstat(link))(t))
	check(link, ofFile.Add(hostsAge), errFresh)
	check(link, ofLink.Add(hostsAge), nil)
	for !changed(testkit.Value(os.Stat(link))(t)).After(ofLink) {
		testkit.Must(t, os.Chmod(hosts, 0o644))
	}
	check(link, ofLink.Add(hostsAge), errFresh)

	testkit.Write(t, dir, "hosts", "10.0.0.6 ghcr.io\n"+good)
	err := verifyHosts(hosts, time.Now(), func(string) string { return "" }, "ghcr.io", "gateway.example.com")
	if err == nil || errors.Is(err, errFresh) {
		t.Errorf("another address: %v", err)
	}
	check(filepath.Join(dir, "missing"), ofFile, os.ErrNotExist)
}

// FuzzIsProxied holds the reading of NO_PROXY to that of Go's own programs, CRI-O for example.
func FuzzIsProxied(f *testing.F) {
	for _, direct := range []string{
		"", "*", "ghcr.io", "GHCR.io", ".ghcr.io", "*.ghcr.io", "*ghcr.io", "io", ".io", "*.io", "*io", "*:443", ":443", "ghcr.io:443", "ghcr.io:8443", "*.io:443",
		"10.0.0.0/8, ghcr.io", "cr.io", "**.io", "*..io", "ghcr.io.", ".", "*.", ",", "x,,y", "[::1]:443",
	} {
		f.Add("http://10.0.0.7:3128", "", direct, "ghcr.io")
	}
	f.Add("", "http://10.0.0.7:3128", "", "registry-1.docker.io")
	f.Add("", "http://10.0.0.7:3128", "*docker.io", "registry-1.docker.io")
	f.Add("", "", "", "ghcr.io")
	f.Fuzz(func(t *testing.T, upper, lower, direct, host string) {
		if strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" || !strings.Contains(host, ".") || strings.Trim(direct, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-*:,/[] ") != "" {
			return // no registry has such a name; httpproxy also knows international ones
		}
		config := httpproxy.Config{HTTPSProxy: upper, NoProxy: direct}
		if upper == "" {
			config.HTTPSProxy = lower
		}
		to, err := config.ProxyFunc()(&url.URL{Scheme: "https", Host: host})
		if err != nil {
			return // of a proxy that is no URL
		}
		got := isProxied(func(name string) string {
			return map[string]string{"HTTPS_PROXY": upper, "https_proxy": lower, "NO_PROXY": direct}[name]
		}, host)
		if want := to != nil; want && !got {
			t.Errorf("%q, %q for %s: a proxy is asked", upper+lower, direct, host)
		} else if !want && got && strings.TrimSpace(upper+lower) != "" && strings.Contains(","+direct+",", ","+host+",") {
			t.Errorf("%q, %q for %s: no proxy is asked", upper+lower, direct, host)
		}
	})
}
