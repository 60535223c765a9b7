package migration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/pullsecrets"
)

// stepTitle describes the work of a step, and what to verify before the next step.
func stepTitle(step int) string {
	return map[int]string{
		stepNodes:  "make the nodes ready. Nothing changes for pods: their imagePullSecrets are tried first.",
		stepPolicy: "let the policy grant what is pulled. Nothing changes for pods.",
		stepRemove: "remove the imagePullSecrets, one object at a time, and in the files that it is made from. A changed template restarts its pods.",
		stepWatch:  "renew the pods that still have them, and watch: the audit log says granted for each, and pullpass_exchanges_total counts no other result of the cluster.",
		stepDelete: "delete what nothing uses any more. Controllers that name a Secret in objects of their own are not seen.",
	}[step]
}

// WriteTable writes the rows, followed by the remaining work in order.
func WriteTable(w io.Writer, m *Plan) error {
	var b strings.Builder
	if len(m.Rows) == 0 {
		fmt.Fprintf(&b, "cluster %s: no imagePullSecrets for %s, no pull Secret and no legacy token\n", m.Cluster, strings.Join(m.options.Registries, ", "))
	} else {
		table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "STEP\tVERDICT\tNAMESPACE\tOBJECT\tSECRETS\tWHY")
		for _, r := range m.Rows {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\n", r.Step, r.Verdict, cmp.Or(term.Plain(r.Namespace), "-"), kindAndName(r.Kind, r.Name), cmp.Or(several(plainTexts(r.Secrets)), "-"), r.Why)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	step := 0
	for _, r := range m.Rows {
		if r.Step != step {
			step = r.Step
			fmt.Fprintf(&b, "\nStep %d: %s\n", step, stepTitle(step))
		}
		name := kindAndName(r.Kind, r.Name)
		if r.Namespace != "" {
			name = term.Plain(r.Namespace) + ": " + name
		}
		fmt.Fprintf(&b, "- %s: %s\n", name, r.Do)
		if r.Command != "" {
			fmt.Fprintf(&b, "    %s\n", r.Command)
		}
	}
	fmt.Fprintf(&b, "\nworkloads that pull from the registries without imagePullSecrets: %d\n", m.Migrated)
	for _, u := range m.Unread {
		fmt.Fprintf(&b, "not read: %s: %s\n", u.Resource, u.Why)
	}
	if m.StaticPods > 0 {
		fmt.Fprintf(&b, "static pods with images of the registries: %d; they have no ServiceAccount, so leave them the node's own credentials\n", m.StaticPods)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes the same data as JSON.
func WriteJSON(w io.Writer, m *Plan) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	rows := m.Rows
	if rows == nil {
		rows = []Row{}
	}
	return encoder.Encode(struct {
		APIVersion string               `json:"apiVersion"`
		Kind       string               `json:"kind"`
		Cluster    string               `json:"cluster"`
		Namespace  string               `json:"namespace,omitempty"`
		Registries []Registry           `json:"registries"`
		Rows       []Row                `json:"rows"`
		Unread     []pullsecrets.Unread `json:"unread,omitempty"`
		Migrated   int                  `json:"workloadsWithoutPullSecrets"`
		StaticPods int                  `json:"staticPods"`
	}{strictyaml.AnswerVersion, "PullSecretReport", m.Cluster, m.Namespace, m.Registries, rows, m.Unread, m.Migrated, m.StaticPods})
}

func kindAndName(kind, name string) string { return term.Plain(kind) + " " + term.Plain(name) }

func plainTexts(list []string) []string {
	plain := make([]string, len(list))
	for i, s := range list {
		plain[i] = term.Plain(s)
	}
	return plain
}

// several joins the first few names, which must be safe to print.
func several(names []string) string {
	const shown = 3
	var parts []string
	for i, name := range names {
		if i == shown {
			parts = append(parts, fmt.Sprintf("and %d more", len(names)-shown))
			break
		}
		parts = append(parts, name)
	}
	return strings.Join(parts, ", ")
}

func joined(parts ...string) string {
	var some []string
	for _, part := range parts {
		if part != "" {
			some = append(some, part)
		}
	}
	return strings.Join(some, "; ")
}

// remedies returns the reason and the remedy for each image that is not granted.
func remedies(pulls []grant) string {
	var lines []string
	for _, p := range pulls {
		if !p.Granted {
			lines = append(lines, term.Plain(p.Registry+"/"+p.Repository)+": "+p.Reason+"; remedy: "+p.Remedy)
		}
	}
	return strings.Join(lines, "\n  ")
}
