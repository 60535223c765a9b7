package main

import (
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/http/httpproxy"
)

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
