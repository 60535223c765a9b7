package nodeinstall

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

var testFlags = []string{configFlag + "=/c", pluginsFlag + "=/p"}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	e := edit{Form: formEnvironment, Variable: "ARGS", Ours: testFlags}
	ours := strings.Join(testFlags, " ")
	for before, want := range map[string]string{
		"":                           "ARGS=\"" + ours + "\"\n",
		"# ARGS=\n":                  "# ARGS=\nARGS=\"" + ours + "\"\n",
		"OTHER=1":                    "OTHER=1\nARGS=\"" + ours + "\"\n",
		"ARGS\n":                     "ARGS\nARGS=\"" + ours + "\"\n", // not an assignment
		"ARGS=":                      "ARGS=" + ours,
		"ARGS=\n":                    "ARGS=" + ours + "\n",
		"ARGS=\"\"\n":                "ARGS=\"" + ours + "\"\n",
		"ARGS='--a=b  --c'\nB=1\n":   "ARGS='--a=b  --c " + ours + "'\nB=1\n",
		"ARGS=--a\nARGS=--b\n":       "ARGS=--a\nARGS=--b " + ours + "\n", // the last one counts
		"  ARGS = \"--a\"  \n":       "  ARGS = \"--a " + ours + "\"  \n",
		"MYARGS=1\nARGS=--a=\"x\"\n": "MYARGS=1\nARGS=--a=\"x\" " + ours + "\n",
		"ARGS=" + ours + " --a\n":    "ARGS=" + ours + " --a\n",
		"ARGS=" + ours + " " + configFlag + " /d\n":  "ARGS=" + configFlag + " /d " + ours + "\n", // otherwise a different flag would win
		"ARGS=" + ours + " " + pluginsFlag + "=/q\n": "ARGS=" + pluginsFlag + "=/q " + ours + "\n",
		"ARGS=" + ours + " " + ours + "\n":           "ARGS=" + ours + "\n",
		"ARGS=" + testFlags[0] + "x --a\n":           "ARGS=" + testFlags[0] + "x --a " + ours + "\n",
	} {
		got, err := e.add([]byte(before))
		if string(got) != want || err != nil {
			t.Errorf("%q becomes\n%q, %v, want\n%q", before, got, err, want)
		}
		again, err := e.add(got)
		if string(again) != want || err != nil {
			t.Errorf("%q becomes %q the second time, %v", before, again, err)
		}
		if without, err := e.remove(got); strings.Contains(string(without), "=/p") || err != nil {
			t.Errorf("%q becomes %q without ours, %v", got, without, err)
		}
	}
	for _, odd := range []string{"ARGS=\"a\nb\"\n", "ARGS='a'b'\n", "ARGS=\"a\\\"\"\n", "ARGS=\"\n", "X=a\\\nARGS=b\n"} {
		if got, err := e.add([]byte(odd)); err == nil {
			t.Errorf("%q becomes %q", odd, got)
		}
	}
}

// The position is not set then.
func TestAnAssignmentThatCannotBeReadIsNotFound(t *testing.T) {
	t.Parallel()
	for _, odd := range []string{"ARGS=\"a\nb\"\n", "X=a\\\nARGS=b\n", "# a \\\nARGS=b\n", "# a \\\n", "ARGS=a\n# a \\\nX=b\n"} {
		if at, found, err := (edit{Form: formEnvironment, Variable: "ARGS"}).assignment([]byte(odd)); found || !errors.Is(err, errForm) {
			t.Errorf("%q: %+v, %t, error %v", odd, at, found, err)
		}
	}
}

// The flag that is not ours may have any value.
func TestOneFlagOfOurs(t *testing.T) {
	t.Parallel()
	for _, flags := range [][2]string{{pluginsFlag + "=/p", configFlag + "=/d"}, {configFlag + "=/c", pluginsFlag + "=/q"}} {
		e := edit{Form: formEnvironment, Variable: "ARGS", Ours: flags[:1]}
		before := "ARGS=" + flags[0] + " " + flags[1] + "\n"
		if got, err := e.add([]byte(before)); string(got) != before || err != nil {
			t.Errorf("%q becomes %q, %v", before, got, err)
		}
	}
	if got := removeWord("--a x", "--a"); got != "x" {
		t.Errorf("%q", got)
	}
}

func TestOnlyAnEmptyAssignmentOfOthersStays(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"", "ARGS=--a\n", "ARGS=\"\"\n", "ARGS=--a\nARGS=''\n"} {
		e := edit{Form: formEnvironment, Variable: "ARGS", Ours: testFlags}
		with, err := e.add([]byte(before))
		testkit.Must(t, err)
		after, err := e.remove(append(with, "# of others\n"...))
		if want := before + "# of others\n"; string(after) != want || err != nil {
			t.Errorf("%q becomes %q, %v, want %q", with, after, err, want)
		}
	}
	old := edit{Form: formEnvironment, Variable: "ARGS", Ours: testFlags} // as recorded before there was Empty
	if after, err := old.remove([]byte("ARGS=\"" + strings.Join(testFlags, " ") + "\"\n")); len(after) > 0 || err != nil {
		t.Errorf("%q, %v", after, err)
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	e := edit{Form: formArguments, Ours: testFlags}
	ours := strings.Join(testFlags, "\n") + "\n"
	for before, want := range map[string]string{
		"":                                   ours,
		"--a":                                "--a\n" + ours,
		"--a\n# b\n":                         "--a\n# b\n" + ours,
		ours + "--a\n":                       ours + "--a\n",
		ours + configFlag + "=/d\n":          configFlag + "=/d\n" + ours,
		"# " + configFlag + "=/c\n":          "# " + configFlag + "=/c\n" + ours,
		ours + "--a\n" + testFlags[1] + "\n": "--a\n" + ours,
	} {
		got, err := e.add([]byte(before))
		if string(got) != want || err != nil {
			t.Errorf("%q becomes\n%q, %v, want\n%q", before, got, err, want)
		}
	}
}

// Whatever a file contains: the added part can be found, is added once, and can be removed without
// a trace.
func FuzzEnvironment(f *testing.F) {
	for _, seed := range []string{"ARGS=", "ARGS=\"--a\"\n", "A=1\nARGS='x y'", "# ARGS\n", "ARGS=" + testFlags[0], "ARGS=\\", "ARGS=a\t" + testFlags[1] + "\t" + testFlags[1] + "\u00a0"} {
		f.Add(seed)
	}
	e := edit{Form: formEnvironment, Variable: "ARGS", Ours: testFlags}
	f.Fuzz(func(t *testing.T, text string) {
		before, err := e.flags([]byte(text))
		if err != nil {
			return
		}
		got, err := e.add([]byte(text))
		testkit.Must(t, err)
		flags, err := e.flags(got)
		testkit.Must(t, err)
		var v flagValues
		if v.take(flags); v.config != "/c" || v.plugins != "/p" {
			t.Fatalf("%q has %+v", got, v)
		}
		if again, err := e.add(got); string(again) != string(got) || err != nil {
			t.Fatalf("%q becomes %q, %v", got, again, err)
		}
		removed, err := e.remove(got)
		testkit.Must(t, err)
		after, err := e.flags(removed)
		testkit.Must(t, err)
		others := func(flags []string) string {
			var kept []string
			for _, flag := range flags {
				if flag != testFlags[0] && flag != testFlags[1] {
					kept = append(kept, flag)
				}
			}
			return strings.Join(kept, " ")
		}
		if others(before) != strings.Join(after, " ") {
			t.Fatalf("%q becomes %q", text, removed)
		}
	})
}

// A kubelet also accepts its flags with underscores, so such flags of others count.
func TestFlagsWithUnderscores(t *testing.T) {
	t.Parallel()
	for _, spelling := range []string{configFlag, strings.ReplaceAll(configFlag[2:], "-", "_"), "image_credential-provider_config"} {
		spelling = "--" + strings.TrimPrefix(spelling, "--")
		for _, flags := range [][]string{{spelling + "=/c.yaml"}, {spelling, "/c.yaml"}} {
			set := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
			set.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
			kubelet := set.String(configFlag[2:], "", "")
			var v flagValues
			v.take(flags)
			if err := set.Parse(flags); err != nil || v.config != *kubelet {
				t.Errorf("%q is %q for the kubelet (%v), and %q here", flags, *kubelet, err, v.config)
			}
		}
	}
}

// Flags with underscores that an administrator gave an EKS node are recognized, and so not lost.
func TestProviderOfOthersByAFlagWithUnderscores(t *testing.T) {
	onHost(t, "eks", func(t *testing.T, h *host) {
		h.put(eksFlags, strings.ReplaceAll(h.read(eksFlags), "--image-credential-provider-config", "--image_credential_provider_config"))
		h.apply(desired("v1.36.2"))
		if link := h.files()["/etc/pullpass/credential-providers/platform.json"]; !strings.HasSuffix(link, " /"+eksConfig) {
			t.Errorf("the provider of others is %q", link)
		}
	})
}
