package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/deploy/sbom"
)

// program is built for several platforms.
type program struct {
	name, dir string
	platforms []string
}

// The image of the service has the first two programs, that of clients the second and the third.
const (
	service       = "pullpass"
	plugin        = "pullpass-credential-provider"
	client        = "docker-credential-pullpass"
	kubectlPlugin = "kubectl-pullpass"
)

var (
	servers = []string{"linux-amd64", "linux-arm64"}
	// Nodes and pods have other processors, too.
	nodes   = append(slices.Clone(servers), "linux-ppc64le", "linux-riscv64", "linux-s390x")
	macs    = []string{"darwin-amd64", "darwin-arm64"}
	windows = []string{"windows-amd64", "windows-arm64"}
)

var programs = []program{
	{service, "./cmd/proxy", slices.Concat(servers, macs, windows)},
	{plugin, "./cmd/credential-provider", slices.Concat(nodes, macs, windows)},
	{client, "./cmd/docker-credential-pullpass", slices.Concat(nodes, macs, windows)},
	{kubectlPlugin, "./cmd/kubectl-pullpass", slices.Concat(servers, macs, windows)},
}

// goEnvironment has whatever changes the bytes of a program: nothing is left to the
// machine.
func goEnvironment(platform string) []string {
	system, architecture, _ := strings.Cut(platform, "-")
	return append(os.Environ(), "GOOS="+system, "GOARCH="+architecture, "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off",
		"GOAMD64=v1", "GOARM64=v8.0", "GOPPC64=power8", "GORISCV64=rva20u64")
}

// buildPrograms writes each program under the name that is downloaded. Those for
// Linux are also below work, where the images take them from.
func (r release) buildPrograms(ctx context.Context, work string) error {
	bom := sbom.Product{Version: r.tag(), Created: r.created}
	for _, p := range programs {
		for _, platform := range p.platforms {
			name := p.name + "-" + platform
			if strings.HasPrefix(platform, "windows-") {
				name += ".exe"
			}
			fmt.Fprintln(r.stdout, name)
			cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly", //nolint:gosec // constants and a checked version
				"-ldflags", "-s -w -X main.version="+r.tag(), "-o", r.file(name), p.dir)
			cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = r.root, goEnvironment(platform), r.stdout, r.stderr
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("%s: go build: %w", name, err)
			}
			content, err := os.ReadFile(r.file(name))
			if err != nil {
				return err
			}
			info, err := buildinfo.ReadFile(r.file(name))
			if err != nil {
				return err
			}
			bom.Programs = append(bom.Programs, info)
			bom.Files = append(bom.Files, sbom.File{Name: name, Content: content})
			if strings.HasPrefix(platform, "linux-") {
				if err := os.MkdirAll(filepath.Join(work, platform), 0o700); err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(work, platform, p.name), content, 0o700); err != nil { //nolint:gosec // a program
					return err
				}
			}
		}
	}
	if err := sameCompiler(bom.Programs); err != nil {
		return err
	}
	content, err := bom.JSON()
	if err != nil {
		return err
	}
	return r.write("pullpass.cdx.json", content)
}

// sameCompiler makes sure that the provenance, which names the Go of this program,
// is right: GOTOOLCHAIN and go.mod choose it for both.
func sameCompiler(infos []*debug.BuildInfo) error {
	for _, info := range infos {
		if info.GoVersion != runtime.Version() {
			return fmt.Errorf("a program was built with %s, and this one with %s", info.GoVersion, runtime.Version())
		}
	}
	return nil
}

// buildImages packs the images, as "make image" does.
func (r release) buildImages(ctx context.Context, work string) ([]artifact, error) {
	roots, err := r.output(ctx, "go", "run", "./deploy/image/roots")
	if err != nil {
		return nil, err
	}
	rootsFile := filepath.Join(work, "ca-certificates.crt")
	if err := os.WriteFile(rootsFile, []byte(roots+"\n"), 0o600); err != nil {
		return nil, err
	}
	var images []artifact
	for _, image := range []struct {
		name, program string
		platforms     []string
		args          []string
	}{
		{"pullpass", service, servers, []string{"-roots", rootsFile}},
		{"pullpass-client", client, nodes, nil},
	} {
		archive := r.file(image.name + "-image.tar")
		args := slices.Concat([]string{
			"run", "./deploy/image", "-name", r.registry + "/" + image.name + ":" + r.tag(), "-version", r.tag(), "-revision", r.commit,
			"-created", fmt.Sprint(r.created.Unix()), "-out", archive,
		}, image.args)
		for _, platform := range image.platforms {
			args = append(args, filepath.Join(work, platform, image.program))
		}
		printed, err := r.output(ctx, "go", args...)
		if err != nil {
			return nil, err
		}
		fmt.Fprintln(r.stdout, printed)
		a, err := openArchive(r.registry+"/"+image.name, r.tag(), archive)
		if err != nil {
			return nil, err
		}
		images = append(images, a)
	}
	return images, nil
}
