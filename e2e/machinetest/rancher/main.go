// Command rancher stands in for k3s and RKE2, which are not to be had for the tests: it reads their configuration as they do, runs
// containerd and the kubelet, and ends when one of them does. Of the flags it makes itself, it has those that Pullpass is about.
//
//	rancher NAME SOCKET CONTAINERD KUBELET [FLAG...]
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
)

const providers = "/var/lib/rancher/credentialprovider"

func main() {
	log.SetFlags(0)
	runtime.LockOSThread() // which starts the others, and must not end before (golang.org/issue/27505)
	log.Fatal(run(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5:]))
}

func run(name, socket, containerd, kubelet string, flags []string) error {
	// Both or none: pkg/daemons/agent of k3s.
	_, noBin := os.Stat(providers + "/bin")
	_, noConfig := os.Stat(providers + "/config.yaml")
	if noBin == nil && noConfig == nil {
		flags = append(flags, "image-credential-provider-bin-dir="+providers+"/bin", "image-credential-provider-config="+providers+"/config.yaml")
	}
	own, err := arguments("/etc/rancher/" + name + "/config.yaml")
	if err != nil {
		return err
	}
	// A flag of the user takes the place of what is made here.
	last := map[string]string{}
	var order []string
	for _, flag := range append(flags, own...) {
		key, _, _ := strings.Cut(flag, "=")
		if _, known := last[key]; !known {
			order = append(order, key)
		}
		last[key] = "--" + flag
	}
	args := make([]string, len(order))
	for i, key := range order {
		args[i] = last[key]
	}
	ended := make(chan error)
	engine := command(containerd, "--config=/var/lib/rancher/"+name+"/agent/etc/containerd/config.toml")
	engine.Env = append(os.Environ(), "PATH="+filepath.Dir(containerd)+":"+os.Getenv("PATH"))
	start := func(cmd *exec.Cmd) error {
		err := cmd.Start()
		go func() { ended <- fmt.Errorf("%s ended: %w", cmd.Path, cmd.Wait()) }()
		return err
	}
	if err := start(engine); err != nil {
		return err
	}
	for {
		connection, err := net.Dial("unix", socket)
		if err == nil {
			connection.Close()
			break
		}
		select {
		case err := <-ended:
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
	if err := start(command(kubelet, args...)); err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	return <-ended
}

// arguments returns kubelet-arg of a file and of the directory beside it. In later files, kubelet-arg takes the place of what was
// before, and kubelet-arg+ comes after it.
func arguments(file string) (all []string, err error) {
	files, err := filepath.Glob(file + ".d/*.yaml")
	if err != nil {
		return nil, err
	}
	for _, file := range append([]string{file}, files...) {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var values struct {
			Arguments []string `yaml:"kubelet-arg"`
			More      []string `yaml:"kubelet-arg+"`
		}
		if err := yaml.Unmarshal(content, &values); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if values.Arguments != nil {
			all = values.Arguments
		}
		all = append(all, values.More...)
	}
	return all, nil
}

func command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// systemd ends this process alone (KillMode=process), for the pods' shims run on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// ready tells systemd (sd_notify(3)).
func ready() error {
	socket, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		return err
	}
	defer socket.Close()
	_, err = socket.Write([]byte("READY=1"))
	return err
}
