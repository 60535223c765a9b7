package main

import (
	"strconv"
	"strings"
)

// quoteValue returns a value of the file for a message: on one line and cut. What has
// several lines is most likely a key or certificate that was put where its
// file's name belongs, and is not repeated.
func quoteValue(s string) string {
	if strings.ContainsAny(strings.TrimSpace(s), "\r\n") {
		return "a text of several lines"
	}
	return strconv.QuoteToASCII(cutValue(s))
}

// cutValue bounds what a message repeats, in bytes.
func cutValue(s string) string {
	const limit = 80
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}
