package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/pullpass/pullpass/credential"
)

// command is for systems whose program prints a new token. The errors of the
// program are not passed on: with its debugging switched on, they can hold more
// than an error.
func command(program string, arguments func(audience string) []string) job {
	return job{
		from: credential.Source{Name: program, Audience: "the audience that it is asked for", Renewal: "it printed one that has ended"},
		token: func(ctx context.Context, audience string) (string, error) {
			arguments := arguments(audience)
			var answer answerBuffer
			cmd := exec.CommandContext(ctx, program, arguments...) //nolint:gosec // constants of this program
			cmd.Stdout = &answer
			cmd.WaitDelay = time.Second // for other processes that hold its output
			err := cmd.Run()
			switch {
			case answer.tooLong:
				return "", errAnswerSize
			case errors.Is(err, exec.ErrNotFound):
				return "", fmt.Errorf("not found in PATH, and it gets this CI job its token; or put a token for %q into PULLPASS_ID_TOKEN; %s", audience, instead)
			case ctx.Err() != nil:
				return "", fmt.Errorf("no answer within %s", askTimeout)
			case err != nil:
				return "", fmt.Errorf("%w; to see why, run in the job: %s %s >/dev/null", err, program, strings.Join(arguments, " "))
			}
			return strings.TrimRight(answer.buffer.String(), "\r\n"), nil
		},
	}
}

// answerBuffer takes up to maxAnswerSize. The buffer is not embedded, because its
// ReadFrom would bypass Write.
type answerBuffer struct {
	buffer  bytes.Buffer
	tooLong bool
}

func (b *answerBuffer) Write(p []byte) (int, error) {
	if b.buffer.Len()+len(p) > maxAnswerSize {
		b.tooLong = true
		return 0, errAnswerSize
	}
	return b.buffer.Write(p)
}
