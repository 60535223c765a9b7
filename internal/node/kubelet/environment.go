package kubelet

import (
	"bytes"
	"errors"
	"fmt"
)

// Assignment is the position of a variable's value in an EnvironmentFile of systemd.
type Assignment struct {
	Line, Next int // the line, and the next one
	Start, End int // the value, without quotes
	Quoted     bool
}

var (
	// Before systemd 254, such a comment continues on the next line.
	errContinuedComment = errors.New("a comment ends with \\; remove the \\")
	errContinuedLine    = errors.New("a line ends with \\; write each variable on one line")
)

// LastAssignment finds the last assignment of a variable, which counts (systemd.exec(5),
// EnvironmentFile). With an error, which means a form that is not read here, it finds none.
func LastAssignment(content []byte, variable string) (a Assignment, found bool, err error) {
	at, isComment := 0, false
	for line := range bytes.Lines(content) {
		begin := at
		at += len(line)
		text := bytes.TrimRight(line, " \t\r\n")
		indent := len(text) - len(bytes.TrimLeft(text, " \t"))
		if indent == len(text) || text[indent] == '#' || text[indent] == ';' {
			isComment = bytes.HasSuffix(bytes.TrimRight(line, "\r\n"), []byte(`\`))
			continue
		}
		if isComment {
			return a, false, errContinuedComment
		}
		if text[len(text)-1] == '\\' {
			return a, false, errContinuedLine
		}
		key, value, isSet := bytes.Cut(text[indent:], []byte("="))
		if !isSet || string(bytes.TrimSpace(key)) != variable {
			continue
		}
		a = Assignment{Line: begin, Next: at, End: begin + len(text)}
		if value = bytes.TrimLeft(value, " \t"); len(value) > 0 && (value[0] == '"' || value[0] == '\'') {
			inner := value[1:]
			if len(inner) == 0 || bytes.IndexAny(inner, `\`+string(value[0])) != len(inner)-1 || inner[len(inner)-1] != value[0] {
				return a, false, fmt.Errorf("%s has quotes within quotes; write it with one pair of them", variable)
			}
			value = inner[:len(inner)-1]
			a.Quoted = true
			a.End--
		}
		a.Start = a.End - len(value)
		found = true
	}
	if isComment && !found {
		return a, false, errContinuedComment // an added line would follow
	}
	return a, found, nil
}
