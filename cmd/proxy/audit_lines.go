package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"

	"github.com/pullpass/pullpass/internal/exchange"
)

// maxAuditLine is the longest line that is read, in bytes. Of a request, at
// most 128 scopes are read, and what is written of each is bounded.
const maxAuditLine = 1 << 20

// readAudit calls each for every event, with its line, which is valid until
// each returns. What is compressed with gzip is recognized.
// Lines that are no events are counted and left out: those that a crash cut
// off, and what others wrote into the same stream. Memory is bounded by
// maxAuditLine.
func readAudit(in io.Reader, each func(line []byte, event *exchange.Event) error) (damaged int, err error) {
	lines := bufio.NewReaderSize(in, maxAuditLine)
	if magic, _ := lines.Peek(2); string(magic) == "\x1f\x8b" {
		unpacked, err := gzip.NewReader(lines)
		if err != nil {
			return 0, err
		}
		lines = bufio.NewReaderSize(unpacked, maxAuditLine)
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
			switch event, kind := parseAuditLine(line); kind {
			case auditEvent:
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

type auditLineKind int

const (
	damagedLine auditLineKind = iota
	auditEvent
	programLine // of the program's own log: container logs hold both streams
)

func parseAuditLine(line []byte) (*exchange.Event, auditLineKind) {
	var content struct {
		exchange.Event
		Level string `json:"level"` // as log/slog writes it; no field of an event
	}
	switch err := json.Unmarshal(line, &content); {
	case err == nil && content.ID != "" && content.Result != "" && !content.Time.IsZero():
		return &content.Event, auditEvent
	case err == nil && content.Level != "":
		return nil, programLine
	}
	return nil, damagedLine
}
