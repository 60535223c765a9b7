package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/server/explain"
)

// Answer is the response to a program.
type Answer struct {
	Answer  json.RawMessage `json:"answer,omitempty"`  // as the command prints it with -o json
	Text    string          `json:"text,omitempty"`    // as the command prints it
	Problem string          `json:"problem,omitempty"` // why there is no answer
}

// errNotKnown is for pods without a remembered decision.
var errNotKnown = errors.New("no decision about this pod is remembered; the audit log has it")

// answer answers programs. Its queries are those of the pages, and count as such.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, question string) {
	var answer Answer
	status := http.StatusOK
	answer.Problem = h.ask(r, func(ctx context.Context) error {
		found, text, err := h.question(ctx, question, r.URL.Query())
		if errors.Is(err, errNotKnown) {
			status = http.StatusNotFound
		}
		if err != nil {
			return err
		}
		answer.Text = text
		answer.Answer, err = json.Marshal(found)
		return err
	})
	if answer.Problem != "" && status == http.StatusOK {
		status = http.StatusUnprocessableEntity
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

// question returns an answer, also as text.
func (h *Handler) question(ctx context.Context, question string, values url.Values) (found any, text string, err error) {
	known := h.Known()
	var out bytes.Buffer
	switch question {
	case "who":
		who, err := known.Who(ctx, explain.WhoRequest{Action: values.Get("action"), Repository: values.Get("repository"), Service: values.Get("service")})
		if err != nil {
			return nil, "", err
		}
		err = explain.WriteWho(&out, who)
		return who, out.String(), err
	case "reach":
		account, err := account(known, values.Get("account"))
		if err != nil {
			return nil, "", err
		}
		what, err := known.What(ctx, account)
		if err != nil {
			return nil, "", err
		}
		err = explain.WriteWhat(&out, what)
		return what, out.String(), err
	}
	var explained *explain.Explanation
	if question == "pod" {
		event := h.Log.ofPod(values.Get("uid"))
		if event == nil {
			return nil, "", errNotKnown
		}
		explained, err = known.Again(ctx, event)
	} else {
		var as string
		if as, err = account(known, values.Get("as")); err == nil {
			explained, err = known.As(ctx, explain.Request{As: as, Service: values.Get("service"), Scopes: values["scope"]})
		}
	}
	if err != nil {
		return nil, "", err
	}
	err = explain.WriteText(&out, explained)
	return explained, out.String(), err
}

// account completes NAMESPACE/NAME with the name of the cluster that the caller means: the one that
// this Pullpass runs in, or else the only one. Callers know their cluster by its kubeconfig, not by
// its name here.
func account(known explain.Known, name string) (string, error) {
	if strings.Count(name, "/") != 1 {
		return name, nil
	}
	var names []string
	for i := range known.Config.Clusters {
		c := &known.Config.Clusters[i]
		if c.Kubernetes.InCluster {
			return c.Name + "/" + name, nil
		}
		names = append(names, c.Name)
	}
	if len(names) != 1 {
		return "", fmt.Errorf("%q names no cluster; write CLUSTER/%s with one of the clusters %q", name, name, names)
	}
	return names[0] + "/" + name, nil
}

// ofPod returns the newest decision about a pod that granted less than was requested. If there is
// none, it returns the newest decision about the pod, or nil.
func (l *Log) ofPod(uid string) *exchange.Event {
	if uid == "" {
		return nil
	}
	events := slices.DeleteFunc(l.newest(&query{}), func(e *exchange.Event) bool { return e.Pod == nil || e.Pod.UID != uid })
	if len(events) == 0 {
		return nil
	}
	if i := slices.IndexFunc(events, func(e *exchange.Event) bool { return e.Result != exchange.ResultGranted }); i >= 0 {
		return events[i]
	}
	return events[0]
}
