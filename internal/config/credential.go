package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/gateway/upstream/artifactory"
	"github.com/pullpass/pullpass/internal/gateway/upstream/aws"
	"github.com/pullpass/pullpass/internal/gateway/upstream/azure"
	"github.com/pullpass/pullpass/internal/gateway/upstream/basic"
	"github.com/pullpass/pullpass/internal/gateway/upstream/google"
	"github.com/pullpass/pullpass/internal/gateway/upstream/logins"
	"github.com/pullpass/pullpass/internal/gateway/upstream/quay"
)

// UpstreamCredential is how an upstream is asked: one of these. Each must be a logins.Kind.
type UpstreamCredential struct {
	Basic       *basic.Credential       `json:"basic,omitempty"`
	AWS         *aws.Credential         `json:"aws,omitempty"`
	Google      *google.Credential      `json:"google,omitempty"`
	Azure       *azure.Credential       `json:"azure,omitempty"`
	Quay        *quay.Credential        `json:"quay,omitempty"`
	Artifactory *artifactory.Credential `json:"artifactory,omitempty"`
}

// Kinds returns the kinds that are set, by name. A valid credential has one.
func (c *UpstreamCredential) Kinds() (names []string, kinds []logins.Kind) {
	if c == nil {
		return nil, nil
	}
	fields := reflect.ValueOf(c).Elem()
	for i := range fields.NumField() {
		if !fields.Field(i).IsNil() {
			name, _, _ := strings.Cut(fields.Type().Field(i).Tag.Get("json"), ",")
			names, kinds = append(names, name), append(kinds, fields.Field(i).Interface().(logins.Kind))
		}
	}
	return names, kinds
}

// ofCaller reports whether requests to an upstream use the caller's identity, which needs an
// assertion.
func (c *UpstreamCredential) ofCaller() bool {
	_, kinds := c.Kinds()
	return slices.ContainsFunc(kinds, logins.Kind.OfCaller)
}

// complete sets the defaults that depend on the URL of the upstream.
func (c *UpstreamCredential) complete(url string) {
	_, kinds := c.Kinds()
	for _, kind := range kinds {
		if k, depends := kind.(interface{ Complete(url string) }); depends {
			k.Complete(url)
		}
	}
}

// validate checks that an upstream has one kind of credential, with the fields that the kind needs.
func (c *UpstreamCredential) validate(v *validator, path string) {
	if c == nil {
		return
	}
	names, kinds := c.Kinds()
	for i, kind := range kinds {
		kind.Validate(below{v, path + "." + names[i] + "."})
	}
	switch {
	case len(kinds) == 0:
		v.Fault(path, "is empty; write one kind of credential, or remove it and the upstream is asked anonymously")
	case len(kinds) > 1:
		v.Fault(path, "has %s; keep one of them", strings.Join(names, " and "))
	}
}

// below reports the faults of fields with a common path.
type below struct {
	v    *validator
	path string
}

func (b below) Fault(field, format string, args ...any) { b.v.Fault(b.path+field, format, args...) }

func (b below) BaseURL(field, value, want string) { b.v.baseURL(b.path+field, value, want) }
