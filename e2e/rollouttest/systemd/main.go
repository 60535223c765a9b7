// Command systemd stands in for systemctl and systemd-run on a simulated host. It runs in the host's root directory.
package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	kubelet = "/etc/simulated-kubelet" // has the URL of the test, which plays the kubelet
	failed  = "/run/simulated-failed"  // exists after a restart that failed
)

func main() {
	if err := run(filepath.Base(os.Args[0]), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(name string, args []string) error {
	switch name {
	case "systemd-run":
		for len(args) > 0 && strings.HasPrefix(args[0], "-") {
			args = args[1:]
		}
		command := exec.Command(args[0], args[1:]...)
		command.Stdout, command.Stderr = os.Stdout, os.Stderr
		return command.Run()
	case "systemctl":
		if len(args) > 0 && args[0] == "show" {
			state := "active"
			if _, err := os.Stat(failed); err == nil {
				state = "failed"
			}
			fmt.Println("NRestarts=0\nActiveState=" + state)
			return nil
		}
		url, err := os.ReadFile(kubelet)
		if err != nil {
			return err
		}
		response, err := http.Post(strings.TrimSpace(string(url))+"/"+strings.Join(args, "/"), "text/plain", nil)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.Join(fmt.Errorf("systemctl %v: %s", args, response.Status), os.WriteFile(failed, nil, 0o600))
		}
		return os.RemoveAll(failed)
	}
	return fmt.Errorf("%s is not known", name)
}
