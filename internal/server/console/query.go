package console

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/server/audit"
)

const pageRows = 100

// resultTrial asks for the requests that the policy trial would have decided differently.
const resultTrial = "trial"

// query holds the search conditions: parts of names, in lower case. Empty matches all.
type query struct {
	Pod, Account, Repository, Reason, Result string
	Page                                     int // from 1
}

func readQuery(values url.Values) query {
	text := func(name string) string { return term.Cut(strings.ToLower(strings.TrimSpace(values.Get(name))), 300) }
	page, _ := strconv.Atoi(values.Get("page"))
	return query{text("pod"), text("account"), text("repository"), text("reason"), text("result"), min(max(1, page), maxEvents/pageRows+1)}
}

// at returns the address of another page of the same query.
func (q query) at(page int) string {
	values := url.Values{}
	for name, value := range map[string]string{"pod": q.Pod, "account": q.Account, "repository": q.Repository, "reason": q.Reason, "result": q.Result} {
		if value != "" {
			values.Set(name, value)
		}
	}
	if page > 1 {
		values.Set("page", strconv.Itoa(page))
	}
	return Prefix + "?" + values.Encode()
}

func (q *query) matches(e *exchange.Event) bool {
	return (q.Result == "" || string(e.Result) == q.Result || q.Result == resultTrial && e.Trial != nil) &&
		(q.Reason == "" || strings.Contains(e.Reason, q.Reason)) &&
		(q.Pod == "" || contains(podOf(e), q.Pod)) &&
		(q.Account == "" || contains(accountOf(e), q.Account)) &&
		(q.Repository == "" || slices.ContainsFunc(slices.Concat(e.Requested, e.Granted), func(s string) bool { return contains(s, q.Repository) }) ||
			e.Gateway != nil && contains(e.Gateway.Repository, q.Repository))
}

func contains(s, part string) bool { return s != "" && strings.Contains(strings.ToLower(s), part) }

func podOf(e *exchange.Event) string {
	switch {
	case e.Pod != nil:
		return e.Cluster + "/" + e.Namespace + "/" + e.Pod.Name
	case e.Claimed != nil:
		return e.Claimed.Pod
	}
	return ""
}

func accountOf(e *exchange.Event) string {
	switch {
	case e.ServiceAccount != nil:
		return e.Cluster + "/" + e.Namespace + "/" + e.ServiceAccount.Name
	case e.Identity != nil && e.Identity.Subject != "":
		return e.Identity.Subject
	case e.Claimed != nil:
		if name, ok := audit.ClaimedServiceAccount(e); ok {
			return name.String()
		}
		return e.Claimed.Subject
	}
	return ""
}

// row is a line of the table. Values that are not plain are quoted, as in pullpass audit, so that
// no character hides another.
type row struct {
	ID     string `json:"id"`
	Time   string `json:"time"`
	Result string `json:"result"`
	Status int    `json:"status"`
	Who    string `json:"who"`
	What   string `json:"what"`
	From   string `json:"from"`
	Why    string `json:"why"`
}

func rowOf(e *exchange.Event) row {
	what := audit.What(e)
	if e.Gateway != nil {
		what = term.Words(e.Gateway.Method, e.Gateway.Repository, e.Gateway.Reference)
	}
	return row{
		ID: e.ID, Time: e.Time.UTC().Format(time.DateTime), Result: term.Words(string(e.Result)), Status: e.Status,
		Who: audit.Who(e), What: cmp.Or(what, "-"), From: cmp.Or(term.Words(e.Caller, e.Client), "-"), Why: cmp.Or(audit.Why(e), "-"),
	}
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', 3, 64) }
