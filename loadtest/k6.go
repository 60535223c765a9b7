package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed k6/*.js
var scripts embed.FS

// k6ThresholdsCrossed is the exit code for it (go.k6.io/k6/errext/exitcodes).
const k6ThresholdsCrossed = 99

// summary is what a script measured, as k6 hands it to handleSummary.
type summary struct {
	Metrics map[string]struct {
		Values     map[string]float64 `json:"values"`
		Thresholds map[string]struct {
			OK bool `json:"ok"`
		} `json:"thresholds"`
	} `json:"metrics"`
	State struct {
		Milliseconds float64 `json:"testRunDurationMs"`
	} `json:"state"`
}

// faults names the thresholds that do not hold, with what was measured.
func (s *summary) faults() (faults []string) {
	for name, metric := range s.Metrics {
		for threshold, result := range metric.Thresholds {
			if result.OK {
				continue
			}
			expression, _, _ := strings.Cut(threshold, "<")
			if value, ok := metric.Values[expression]; ok {
				faults = append(faults, fmt.Sprintf("%s: %s, and it is %.4g", name, threshold, value))
			} else {
				faults = append(faults, name+": "+threshold)
			}
		}
	}
	slices.Sort(faults)
	return faults
}

// load is one run of a script. Its page and its log are in the directory of the report, under its name.
type load struct {
	name, script string
	from         string // addresses that the clients have: k6 --local-ips
	env          map[string]string
}

// k6 runs a script to its end. Thresholds that do not hold are in the summary and are not an error.
func (s *site) k6(ctx context.Context, l load) (*summary, error) {
	dir, err := os.MkdirTemp(s.dir, "k6-")
	if err != nil {
		return nil, err
	}
	if err := os.CopyFS(dir, scripts); err != nil {
		return nil, err
	}
	result := filepath.Join(dir, "summary.json")
	args := []string{"run", "--quiet", "--no-usage-report", "--address", "", "--local-ips", l.from,
		"--log-output", "file=" + filepath.Join(s.out, l.name+".log")}
	env := map[string]string{"PULLPASS": s.tokens, "ISSUER": s.issuer, "SUMMARY": result}
	if s.errorsOnly {
		env["OBJECTIVES"] = "errors"
	}
	for _, set := range []map[string]string{env, l.env} {
		for name, value := range set {
			args = append(args, "--env", name+"="+value)
		}
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.programs, "k6"), append(args, filepath.Join(dir, "k6", l.script))...)
	// HTTP/1.1, as containerd speaks; the certificate is checked, as containerd does.
	cmd.Env = append(os.Environ(), "GODEBUG=http2client=0", "SSL_CERT_FILE="+s.file("ca.crt"),
		"K6_WEB_DASHBOARD=true", "K6_WEB_DASHBOARD_PORT=-1", "K6_WEB_DASHBOARD_PERIOD=1s", "K6_WEB_DASHBOARD_EXPORT="+filepath.Join(s.out, l.name+".html"))
	if output, err := cmd.CombinedOutput(); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != k6ThresholdsCrossed {
			return nil, fmt.Errorf("k6 run %s: %w\n%s", l.script, err, output)
		}
	}
	text, err := os.ReadFile(result)
	if err != nil {
		return nil, err
	}
	measured := &summary{}
	return measured, json.Unmarshal(text, measured)
}
