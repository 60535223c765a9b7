package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
)

// program is the path of pullpass in its image.
const program = "/pullpass"

// ErrFailed says that pullpass ran in a pod and failed. Its output has the reason.
var ErrFailed = errors.New("pullpass failed in its pod")

// InPod runs a command of pullpass in the first ready pod of Pullpass, with the configuration of that
// pod. It needs the right to create pods/exec.
func (c *Cluster) InPod(ctx context.Context, command, args []string, stdout, stderr io.Writer) error {
	pods, err := c.pullpass(ctx)
	if err != nil {
		return err
	}
	pod := &pods[0]
	container, file, err := served(pod)
	if err != nil {
		return err
	}
	address := c.core.Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("exec").URL()
	address.RawQuery = url.Values{
		"container": {container}, "stdout": {"true"}, "stderr": {"true"},
		"command": slices.Concat([]string{program}, command, []string{"--config=" + file}, args),
	}.Encode()
	transport, upgrader, err := c.upgrades()
	if err != nil {
		return err
	}
	executor, err := remotecommand.NewSPDYExecutorForTransports(transport, upgrader, "POST", address)
	if err != nil {
		return err
	}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: plainWriter{stdout}, Stderr: plainWriter{stderr}})
	var exit exec.CodeExitError
	switch {
	case transport.forbidden:
		return c.missing("create", "pods", "exec", pod.Namespace)
	case errors.As(err, &exit):
		return fmt.Errorf("%w: exit code %d", ErrFailed, exit.Code)
	}
	return err
}

// served returns the container that serves, and its configuration file.
func served(pod *corev1.Pod) (container, file string, err error) {
	for i := range pod.Spec.Containers {
		x := &pod.Spec.Containers[i]
		args := slices.Concat(x.Command, x.Args)
		for k, arg := range args {
			if value, ok := strings.CutPrefix(arg, "--config="); ok {
				return x.Name, value, nil
			}
			if arg == "--config" && k+1 < len(args) {
				return x.Name, args[k+1], nil
			}
		}
	}
	return "", "", fmt.Errorf("pod %s of namespace %s: no container has the argument --config of pullpass serve", pod.Name, pod.Namespace)
}

// User returns the name that the API server knows the user by.
func (c *Cluster) User(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	const review = `{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}`
	text, err := c.core.Post().AbsPath("/apis/authentication.k8s.io/v1/selfsubjectreviews").SetHeader("Content-Type", "application/json").Body([]byte(review)).Do(ctx).Raw()
	if err != nil {
		return "", c.right(err, "create", "selfsubjectreviews.authentication.k8s.io", "", "")
	}
	var found struct {
		Status struct {
			UserInfo struct {
				Username string `json:"username"`
			} `json:"userInfo"`
		} `json:"status"`
	}
	if err := json.Unmarshal(text, &found); err != nil {
		return "", fmt.Errorf("the SelfSubjectReview: %w", err)
	}
	return found.Status.UserInfo.Username, nil
}

// Logs returns the logs of the pods of Pullpass, one after the other. It needs the right to get
// pods/log.
func (c *Cluster) Logs(ctx context.Context) (io.ReadCloser, error) {
	pods, err := c.pullpass(ctx)
	if err != nil {
		return nil, err
	}
	reader, writer := io.Pipe()
	go func() {
		for i := range pods {
			if err := c.log(ctx, &pods[i], writer); err != nil {
				writer.CloseWithError(err)
				return
			}
		}
		_ = writer.Close()
	}()
	return reader, nil
}

func (c *Cluster) log(ctx context.Context, pod *corev1.Pod, to io.Writer) error {
	container, _, err := served(pod)
	if err != nil {
		return err
	}
	stream, err := c.core.Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("log").Param("container", container).Stream(ctx)
	if err != nil {
		return c.right(err, "get", "pods", "log", pod.Namespace)
	}
	defer stream.Close()
	if _, err := io.Copy(to, stream); err != nil {
		return fmt.Errorf("the log of pod %s: %w", pod.Name, err)
	}
	_, err = io.WriteString(to, "\n") // a line that was cut off does not continue in the next log
	return err
}
