package metrics

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

const metricsDocument = "../../../docs/reference/metrics.md"

var updateMetrics = flag.Bool("update-metrics", false, "write docs/reference/metrics.md")

const metricsIntroduction = `# Metrics

<!-- Made from internal/server/metrics by "make docs". Change it there. -->

` + "Let Prometheus read `GET /metrics` of the admin listener, or send the metrics to an [OpenTelemetry collector](../how-to/telemetry.md)." + `

Every replica counts alone. Times are Unix times, so ` + "`time() - metric`" + ` is an age in seconds. Durations are native histograms (Prometheus needs ` + "`scrape_native_histograms: true`" + `,
or ` + "`--enable-feature=native-histograms`" + ` before 3.8) and classic ones. ` + "`go_*` and `process_*`" + ` are those of every Go program.

Labels never contain text from requests. A label without values in the tables has these:

`

// The document is what the code says. It is made by make docs.
func TestMetricsDocument(t *testing.T) {
	t.Parallel()
	want := metricsText()
	if *updateMetrics {
		testkit.Must(t, os.WriteFile(metricsDocument, want, 0o644))
	}
	got := testkit.Value(os.ReadFile(metricsDocument))(t)
	if !bytes.Equal(got, want) {
		t.Errorf("%s is stale: run make docs", metricsDocument)
	}
}

func metricsText() []byte {
	var b bytes.Buffer
	b.WriteString(metricsIntroduction)
	usual := usualLabels()
	for _, name := range slices.Sorted(maps.Keys(usual)) {
		fmt.Fprintf(&b, "- %s\n", usual[name])
	}
	for _, c := range allMetrics() {
		fmt.Fprintf(&b, "\n## %s\n\n| metric, labels | meaning | alert or remedy |\n| --- | --- | --- |\n", c.title)
		for _, d := range c.metrics {
			cell := fmt.Sprintf("`%s` (%s)", d.name, d.kind)
			for _, l := range d.labels {
				text := l.text()
				if text == usual[l.name] {
					text = "`" + l.name + "`"
				}
				cell += "<br>" + text
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", cell, d.help, d.act)
		}
	}
	return b.Bytes()
}

// usualLabels returns the text that most metrics with a label share.
func usualLabels() map[string]string {
	uses, usual := map[string]int{}, map[string]string{}
	for _, c := range allMetrics() {
		for _, d := range c.metrics {
			for _, l := range d.labels {
				text := l.text()
				if uses[text]++; uses[text] > max(1, uses[usual[l.name]]) {
					usual[l.name] = text
				}
			}
		}
	}
	return usual
}

// text lists the values, unless the meaning leads to a list.
func (l *label) text() string {
	text := "`" + l.name + "`"
	var parts []string
	if !strings.HasPrefix(l.means, "[") {
		for _, v := range l.values {
			if v != "" {
				parts = append(parts, "`"+v+"`")
			}
		}
	}
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	switch {
	case l.means == "":
		return text
	case len(parts) > 0:
		return text + "; " + l.means
	}
	return text + ": " + l.means
}

// Names follow the rules of Prometheus, and the document says for each metric what
// a bad value means.
func TestMetricsAreNamedByConvention(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range allMetrics() {
		for _, d := range c.metrics {
			if seen[d.name] {
				t.Errorf("%s is there twice", d.name)
			}
			seen[d.name] = true
			if !strings.HasPrefix(d.name, "pullpass_") || !strings.HasSuffix(d.help, ".") || strings.Contains(d.help+d.act, "|") {
				t.Errorf("%s: %q", d.name, d.help)
			}
			if total := strings.HasSuffix(d.name, "_total"); total != (d.kind == counter) {
				t.Errorf("%s is a %s", d.name, d.kind)
			}
			if unit := strings.HasSuffix(d.name, "_seconds"); d.kind == histogram && (!unit || len(d.buckets) == 0) {
				t.Errorf("%s: no unit, or no buckets", d.name)
			}
			for _, l := range d.labels {
				if (l.values == nil) == (l.from == "") || l.values == nil && l.means == "" && l.name != "version" {
					t.Errorf("%s: label %s has no values, or two kinds of them", d.name, l.name)
				}
			}
		}
	}
}

// expectClosed holds every series of ours to its definition: it has one, and the
// values of its labels are those of the closed sets.
func expectClosed(t *testing.T, m *Metrics) {
	t.Helper()
	defined := map[string]*metric{}
	for _, c := range allMetrics() {
		for _, d := range c.metrics {
			defined[d.name] = d
		}
	}
	families := testkit.Value(m.Registry.Gather())(t)
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "pullpass_") {
			continue
		}
		d := defined[family.GetName()]
		if d == nil {
			t.Errorf("%s is not defined", family.GetName())
			continue
		}
		for _, series := range family.Metric {
			for _, pair := range series.Label {
				d.expectValue(t, m, pair)
			}
		}
	}
}

func (d *metric) expectValue(t *testing.T, m *Metrics, pair *dto.LabelPair) {
	t.Helper()
	i := slices.IndexFunc(d.labels, func(l label) bool { return l.name == pair.GetName() })
	if i < 0 {
		t.Errorf("%s: label %s is not defined", d.name, pair.GetName())
		return
	}
	l, value := &d.labels[i], pair.GetValue()
	if l.from == fromCode || slices.Contains(l.values, value) || m.current.Load().known[l.from][value] || value == l.other {
		return
	}
	t.Errorf("%s: label %s is %q", d.name, l.name, value)
}
