package simulation

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/test/kubetest"
)

const pullAudience = "pull." + registry

// ServeHTTP is the API server of a cluster, with the admission policies of the controller of pull secrets.
func (c *cluster) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/openid/v1/jwks" {
		set := struct {
			Keys []map[string]string `json:"keys"`
		}{}
		for _, id := range c.keys.now() {
			set.Keys = append(set.Keys, map[string]string{"kid": id})
		}
		rw.Header().Set("Content-Type", "application/jwk-set+json")
		_ = json.NewEncoder(rw).Encode(set)
		return
	}
	if r.Method == http.MethodGet {
		c.api.ServeHTTP(rw, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client died
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	parts := append(strings.Split(strings.Trim(r.URL.Path, "/"), "/"), "", "", "")
	switch {
	case parts[0] == "api" && (parts[4] == "secrets" || parts[6] == "token"):
		if why := c.denies(r, body, parts[3], parts[5], parts[4] != "secrets"); why != "" {
			kubetest.Status(http.StatusUnprocessableEntity, "Invalid", "denied request: "+why)(rw, r)
			return
		}
	case strings.HasSuffix(r.URL.Path, "/status"):
		c.wroteStatus(parts[4])
	}
	c.api.ServeHTTP(rw, r)
	if parts[5] == "leases" {
		c.leaseWritten()
	}
}

// denies is what deploy/kubernetes/pull-secrets-controller.yaml says of Secrets, and of tokens for them.
func (c *cluster) denies(r *http.Request, body []byte, namespace, name string, isToken bool) string {
	const optIn = "pullpass.dev/pull-secrets"
	isDry := r.URL.Query().Has("dryRun")
	var sent kubetest.Object
	_ = json.Unmarshal(body, &sent)
	account, owned := name, ownerOf(sent)
	if !isToken {
		account = owned.name
	}
	if !isDry {
		c.attempted(namespace, account)
	}
	if labelsOf(c.api.Object("namespaces", "", namespace))[optIn] != "enabled" {
		return "the namespace has not opted in"
	}
	if isToken {
		if labelsOf(c.api.Object("serviceaccounts", namespace, account))[optIn] != "enabled" {
			return "the ServiceAccount has not opted in"
		}
		return ""
	}
	old := c.api.Object("secrets", namespace, name)
	isOne := func(o kubetest.Object) bool {
		return labelsOf(o)["app.kubernetes.io/managed-by"] == "pullpass-pull-secrets" && o["metadata"].(kubetest.Object)["name"] == "pullpass-pull-"+ownerOf(o).name
	}
	isUpdate := r.Method == http.MethodPut && old != nil
	switch {
	case isUpdate && !isOne(old):
		return "the Secret belongs to another program"
	case !isOne(sent):
		return "the Secret is not one of a ServiceAccount"
	case isUpdate && ownerOf(old) != owned:
		return "the Secret would have another owner, or outlive it"
	case !(isUpdate && isDry) && labelsOf(c.api.Object("serviceaccounts", namespace, account))[optIn] != "enabled":
		return "the ServiceAccount has not opted in"
	}
	if isUpdate && !isDry {
		c.judgeSecret(namespace, old["metadata"].(kubetest.Object)["uid"], owned, sent)
	}
	return ""
}

func labelsOf(o kubetest.Object) kubetest.Object {
	m, _ := o["metadata"].(kubetest.Object)
	labels, _ := m["labels"].(kubetest.Object)
	return labels
}

// owner is the ServiceAccount that a Secret belongs to.
type owner struct{ name, uid string }

func ownerOf(o kubetest.Object) owner {
	m, _ := o["metadata"].(kubetest.Object)
	all, _ := m["ownerReferences"].([]any)
	if len(all) != 1 {
		return owner{}
	}
	reference, _ := all[0].(kubetest.Object)
	return owner{fmt.Sprint(reference["name"]), fmt.Sprint(reference["uid"])}
}

// pullToken is the token in a Secret.
type pullToken struct {
	KeyID      string
	Audience   []string `json:"aud"`
	IssuedAt   int64    `json:"iat"`
	Expiry     int64    `json:"exp"`
	Kubernetes struct {
		Namespace      string
		ServiceAccount struct{ Name, UID string }
		Secret         struct{ Name, UID string }
	} `json:"kubernetes.io"`
}

// tokenIn returns the token in a Secret, or nil.
func tokenIn(o kubetest.Object) *pullToken {
	data, _ := o["data"].(kubetest.Object)
	text, _ := base64.StdEncoding.DecodeString(fmt.Sprint(data[".dockerconfigjson"]))
	var config struct {
		Auths map[string]struct{ Username, Password, Auth string }
	}
	_ = json.Unmarshal(text, &config)
	login, ok := config.Auths[registry]
	parts := strings.Split(login.Password, ".")
	if !ok || len(config.Auths) != 1 || len(parts) != 3 || login.Username == "" {
		return nil
	}
	var header struct{ Kid string }
	var t pullToken
	for i, into := range []any{&header, &t} {
		part, _ := base64.RawURLEncoding.DecodeString(parts[i])
		if json.Unmarshal(part, into) != nil {
			return nil
		}
	}
	t.KeyID = header.Kid
	return &t
}

// judgeSecret blames a keeper that writes a Secret with a wrong token.
func (c *cluster) judgeSecret(namespace string, uid any, owned owner, sent kubetest.Object) {
	t := tokenIn(sent)
	if t == nil {
		c.world.ledger.blame("a Secret without a token is written: %v", sent)
		return
	}
	k := t.Kubernetes
	switch {
	case k.Secret.UID != uid || k.Secret.Name != "pullpass-pull-"+owned.name:
		c.world.ledger.blame("the token is bound to %+v, and the Secret is %s", k.Secret, uid)
	case k.Namespace != namespace || k.ServiceAccount.Name != owned.name || k.ServiceAccount.UID != owned.uid:
		c.world.ledger.blame("the token is of %+v in the Secret of %+v", k, owned)
	case !slices.Equal(t.Audience, []string{pullAudience}) || t.Expiry-t.IssuedAt > 3600:
		c.world.ledger.blame("the token is for %v, and lives %d seconds", t.Audience, t.Expiry-t.IssuedAt)
	}
}

// leaseWritten notes who has the Leases.
func (c *cluster) leaseWritten() {
	holder := func(name string) string {
		spec, _ := c.api.Object("leases", "pullpass", name)["spec"].(kubetest.Object)
		holder, _ := spec["holderIdentity"].(string)
		return holder
	}
	if now, was := holder("pullpass-pull-secrets"), c.lease.Load(); was == nil || was.holder != now {
		c.lease.CompareAndSwap(was, &takeover{now, time.Now()})
	}
	if now, was := holder("pullpass-policy-status"), c.statusLease.Load(); was == nil || was.holder != now {
		if c.statusLease.CompareAndSwap(was, &takeover{now, time.Now()}) && now != "" {
			time.AfterFunc(oneLeads, c.countLeaders)
		}
	}
}
