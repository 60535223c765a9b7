package isolate

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Addresses are those of the nodes: a kubelet refuses one of loopback.
func Addresses() []string { return []string{"10.99.0.1", "10.99.0.2"} }

// ServiceAddress is that of the Service kubernetes, the first of the API server's --service-cluster-ip-range.
const ServiceAddress = "10.96.0.1"

// initialize is process 1: it returns the exit code of the tests.
func initialize() (int, error) {
	work := os.Getenv(workVariable)
	if err := mountAll(work); err != nil {
		return 0, err
	}
	if err := network(); err != nil {
		return 0, err
	}
	inside := again("inside", "TMPDIR="+work)
	if err := inside.Start(); err != nil {
		return 0, err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("wait: %w", err)
		}
		if pid == inside.Process.Pid {
			if status.Signaled() {
				return 0, fmt.Errorf("the tests were ended by %v", status.Signal())
			}
			return status.ExitStatus(), nil
		}
	}
}

// mountAll gives the tests a file system in which they can write to the places that nodes are configured in, and nothing of
// that reaches the machine.
func mountAll(work string) error {
	if err := mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := mount("tmpfs", work, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	for _, dir := range []string{"etc", "usr/local", "var", "opt"} {
		upper, inner := filepath.Join(work, "over", dir), filepath.Join(work, "inner", dir)
		for _, made := range []string{upper, inner} {
			if err := os.MkdirAll(made, 0o755); err != nil {
				return err
			}
		}
		over := fmt.Sprintf("lowerdir=/%s,upperdir=%s,workdir=%s", dir, upper, inner)
		if err := mount("overlay", "/"+dir, "overlay", 0, over); err != nil {
			return err
		}
	}
	return mount("tmpfs", "/run", "tmpfs", 0, "mode=0755")
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := syscall.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", kind, target, err)
	}
	return nil
}

func network() error {
	commands := [][]string{{"link", "set", "lo", "up"}}
	for _, address := range append(Addresses(), ServiceAddress) {
		commands = append(commands, []string{"address", "add", address + "/32", "dev", "lo"})
	}
	for _, args := range commands {
		if output, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, output)
		}
	}
	return nil
}
