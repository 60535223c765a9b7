package policy

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// lookalikes returns names that some program takes for the given one, which holds team-a: by folding
// case, by cleaning a path, by decoding, or by the look of the letters.
func lookalikes(name string) map[string]string {
	last := name[len(name)-1:]
	all := map[string]string{
		"upper case": strings.ToUpper(name), "title case": strings.ToUpper(name[:1]) + name[1:], "one upper letter": name[:len(name)-1] + strings.ToUpper(last),
		"dot behind": name + ".", "dots behind": name + "..", "dot before": "." + name, "slash behind": name + "/", "slash before": "/" + name, "slashes before": "//" + name,
		"this directory": "./" + name, "this directory behind": name + "/.", "parent": "x/../" + name, "parent behind": name + "/..", "parent of a tree": name + "/../" + name, "parent before": "../" + name,
		"backslash before": `\` + name, "backslash behind": name + `\`, "backslash and parent": `x\..\` + name, "slash and backslash": name + `/\`,
		"dash behind": name + "-", "underscore behind": name + "_", "three underscores": strings.ReplaceAll(name, "-", "___"), "underscore": strings.ReplaceAll(name, "-", "_"), "two dashes": strings.ReplaceAll(name, "-", "--"), "dot": strings.ReplaceAll(name, "-", "."), "no dash": strings.ReplaceAll(name, "-", ""),
		"blank behind": name + " ", "blank before": " " + name, "blank inside": strings.ReplaceAll(name, "-", " "), "tab behind": name + "\t", "line break behind": name + "\n", "carriage return behind": name + "\r", "NUL behind": name + "\x00", "NUL and more": name + "\x00.evil", "vertical tab": name + "\v", "DEL": name + "\x7f", "clears a terminal": "\x1b[2J" + name,
		"percent letter": strings.ReplaceAll(name, "t", "%74"), "percent dash": strings.ReplaceAll(name, "-", "%2d"), "percent twice": strings.ReplaceAll(name, "-", "%252d"), "percent NUL": name + "%00", "percent dots": "x/%2e%2e/" + name, "plus behind": name + "+", "entity": strings.ReplaceAll(name, "-", "&#45;"), "unicode escape": strings.ReplaceAll(name, "-", `\u002d`), "overlong": strings.ReplaceAll(name, "-", "\xc0\xad"), "not UTF-8": name + "\xff", "cut letter": name + "\xc3",
		"Cyrillic a": strings.Replace(name, "a", "а", 1), "Cyrillic e": strings.Replace(name, "e", "е", 1), "full width": strings.Replace(name, "t", "ｔ", 1), "mathematical": strings.Replace(name, "t", "𝐭", 1), "accent, one letter": strings.Replace(name, "e", "é", 1), "accent, two letters": strings.Replace(name, "e", "e\u0301", 1), "accent behind": name + "\u0301", "no width": strings.Replace(name, "-", "-\u200b", 1), "joiner": strings.Replace(name, "-", "\u200d-", 1), "byte order mark": "\ufeff" + name, "right to left": "\u202e" + name, "soft hyphen": strings.Replace(name, "-", "\u00ad-", 1), "another hyphen": strings.Replace(name, "-", "‐", 1), "minus": strings.Replace(name, "-", "−", 1), "blank of no break": name + "\u00a0", "tag letter": name + "\U000e0061",
		"star": "*", "stars": "**", "star behind": name + "*", "question mark": strings.Replace(name, "a", "?", 1), "class": strings.Replace(name, "a", "[a]", 1), "braces": strings.Replace(name, "a", "{a,b}", 1), "any": ".*", "alternative": name + "|x", "end": name + "$", "begin": "^" + name, "group": "(" + name + ")", "placeholder": "{namespace}", "comment": name + "#", "query": name + "?x", "parameters": name + ";x", "quoted": `"` + name + `"`, "comma": name + ",x", "equals": name + "=x", "tilde": "~" + name, "dollar": "$" + name, "at": name + "@sha256:" + strings.Repeat("a", 64), "user": "x@" + name,
		"tag": name + ":latest", "port": name + ":443", "colon behind": name + ":", "colon before": ":" + name, "scheme": "https://" + name, "host": "h.io/" + name, "host and port": "h.io:5000/" + name, "localhost": "localhost/" + name, "address": "127.0.0.1/" + name, "IPv6": "[::1]/" + name,
		"longer": name + "b", "shorter": name[:len(name)-1], "letter before": "x" + name, "twice": name + name, "empty": "", "256 bytes": strings.Repeat(name, 1+255/len(name)), "8 KiB": strings.Repeat(name, 8192/len(name)), "256 bytes in parts": name + strings.Repeat("/a", 130) + "\x00",
	}
	for how, text := range all {
		if text == name {
			delete(all, how)
		}
	}
	return all
}

func lookalikePolicy(t *testing.T) *Policy {
	t.Helper()
	return parseText(t, `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- name: exact
  subjects: [{clusters: [team-a], namespaces: [team-a], serviceAccounts: [team-a]}]
  services: [team-a.example.com]
  allow: [{repositories: [team-a/web, "h.io:5000/team-a"], actions: [pull]}]
- name: by-placeholder
  subjects: [{namespaces: [team-a], nodes: [team-a]}]
  allow: [{repositories: ["{namespace}/web", "{serviceAccount}/web", "{cluster}/web"], actions: [pull]}]
- name: by-annotation
  subjects: [{namespaces: [team-b]}]
  annotation: k
  allow: [{repositories: ["{namespace}/**", "shared/*"], actions: [pull]}]
`)
}

func lookalikeIdentity() *oidc.Identity {
	return &oidc.Identity{Cluster: "team-a", Kubernetes: oidc.KubernetesIdentity{Namespace: "team-a", ServiceAccount: oidc.ObjectRef{Name: "team-a", UID: "u"}, Node: oidc.ObjectRef{Name: "team-a", UID: "u"}}}
}

// A name that is almost that of a rule gets nothing, whether a client writes it into a scope, or it
// stands in a token, an annotation or the name of a service.
func TestLookalikesGetNothing(t *testing.T) {
	t.Parallel()
	policy := lookalikePolicy(t)
	const service, repository = "team-a.example.com", "team-a/web"
	pull := func(name string) []registryauth.Scope { return []registryauth.Scope{scopeNamed(name)} }
	granted := func(subject Subject, service, name string) []string {
		t.Helper()
		return policy.Decide(subject, service, pull(name)).Scopes[0].Granted
	}
	good := Subject{Identity: lookalikeIdentity()}
	if granted(good, service, repository) == nil || granted(good, "other", repository) == nil {
		t.Fatal("the good name gets nothing")
	}
	tried := 0

	// A repository, as sent by a client and as a scope that was not parsed.
	for how, name := range lookalikes(repository) {
		tried++
		parsed, err := registryauth.ParseScopes([]string{"repository:" + name + ":pull"})
		for _, scope := range append(parsed, pull(name)...) {
			if got := policy.Decide(good, service, []registryauth.Scope{scope}).Scopes[0].Granted; got != nil {
				t.Errorf("%s: %q is granted %q (%v)", how, scope.Name, got, err)
			}
		}
	}
	for _, form := range []string{"repository:team-a/web,pull", "Repository:team-a/web:pull", "repository:team-a/web:PULL", "repository:team-a/web:pull:", "repository::team-a/web:pull", "registry:team-a/web:pull", "repository(a):team-a/web:p", "repository:team-a%2fweb:pull", url.QueryEscape("repository:team-a/web:pull")} {
		tried++
		parsed, _ := registryauth.ParseScopes([]string{form})
		for _, s := range policy.Decide(good, service, parsed).Scopes {
			if s.Granted != nil {
				t.Errorf("%q is granted %q", form, s.Granted)
			}
		}
	}

	// Names in a token. The verifier refuses most of them before.
	for how, name := range lookalikes("team-a") {
		for field, set := range map[string]func(*oidc.Identity){
			"cluster":         func(id *oidc.Identity) { id.Cluster = name },
			"namespace":       func(id *oidc.Identity) { id.Kubernetes.Namespace = name },
			"service account": func(id *oidc.Identity) { id.Kubernetes.ServiceAccount.Name = name },
		} {
			tried++
			id := lookalikeIdentity()
			id.Kubernetes.Node = oidc.ObjectRef{}
			set(id)
			if got := granted(Subject{Identity: id}, service, repository); got != nil {
				t.Errorf("%s %s: %q is granted %q", field, how, name, got)
			}
		}
		tried++
		id := lookalikeIdentity()
		id.Kubernetes.Node.Name = name
		if got := granted(Subject{Identity: id}, "other", repository); got != nil {
			t.Errorf("node %s: %q is granted %q", how, name, got)
		}
		// A value of a placeholder is one component, and literal.
		id = lookalikeIdentity()
		id.Cluster, id.Kubernetes.ServiceAccount.Name = name, name
		for _, other := range []string{"team-b/web", "team-a/x", "web", "x/web"} {
			if got := granted(Subject{Identity: id}, "other", other); got != nil {
				t.Errorf("placeholder %s: %q gets %q of %s", how, name, got, other)
			}
		}
	}
	for how, name := range lookalikes(service) {
		tried++
		id := lookalikeIdentity()
		id.Kubernetes.Node = oidc.ObjectRef{}
		if got := granted(Subject{Identity: id}, name, repository); got != nil {
			t.Errorf("service %s: %q is granted %q", how, name, got)
		}
	}

	// An annotation selects, and never more than the ceiling.
	asker := lookalikeIdentity()
	asker.Kubernetes.Namespace = "team-b"
	asker.Kubernetes.Node = oidc.ObjectRef{}
	for _, written := range []string{"team-a/web", "team-b", "shared/team-a"} {
		for how, name := range lookalikes(written) {
			tried++
			subject := Subject{Identity: asker, Annotations: map[string]string{"k": name + ":*"}}
			for _, other := range []string{"team-a/web", "team-a", "team-c/web", "shared/a/b", "web"} {
				if got := granted(subject, service, other); got != nil {
					t.Errorf("annotation %s: %q gets %q of %s", how, name, got, other)
				}
			}
			_, err := parseAnnotation(name + ":*")
			if isSame := how == "star" || how == "stars" || how == "star behind" || how == "blank before"; err != nil || isSame {
				continue
			}
			if got := granted(subject, service, written); got != nil {
				t.Errorf("annotation %s: %q gets %q of %s", how, name, got, written)
			}
		}
	}
	if tried < 900 {
		t.Errorf("only %d names", tried)
	}
	t.Log(fmt.Sprint(tried, " names"))
}
