package audit

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"

	"github.com/pullpass/pullpass/internal/exchange"
)

// maxLine is the length of the longest line that is read, in bytes. At most 128 scopes of a request
// are read, and the text of each is bounded.
const maxLine = 1 << 20

// read calls each for every event, with its line. The line is valid until each returns. It detects
// gzip compression. It counts and skips lines that are not events: lines that a crash cut off, and
// lines of other programs. Memory is bounded by maxLine.
func read(in io.Reader, each func(line []byte, event *exchange.Event) error) (damaged int, err error) {
	lines := bufio.NewReaderSize(in, maxLine)
	if magic, _ := lines.Peek(2); string(magic) == "\x1f\x8b" {
		unpacked, err := gzip.NewReader(lines)
		if err != nil {
			return 0, err
		}
		lines = bufio.NewReaderSize(unpacked, maxLine)
	}
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			damaged++
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = lines.ReadSlice('\n')
			}
			line = nil
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			switch event, kind := parseLine(line); kind {
			case eventLine:
				if err := each(line, event); err != nil {
					return damaged, err
				}
			case damagedLine:
				damaged++
			}
		}
		if errors.Is(err, io.EOF) {
			return damaged, nil
		}
		if err != nil {
			return damaged, err
		}
	}
}

type lineKind int

const (
	damagedLine lineKind = iota
	eventLine
	programLine // of the program's own log: container logs hold both streams
)

func parseLine(line []byte) (*exchange.Event, lineKind) {
	var content struct {
		exchange.Event
		Level string `json:"level"` // as log/slog writes it; events do not have this field
	}
	switch err := json.Unmarshal(line, &content); {
	case err == nil && content.ID != "" && content.Result != "" && !content.Time.IsZero():
		return &content.Event, eventLine
	case err == nil && content.Level != "":
		return nil, programLine
	}
	return nil, damagedLine
}
