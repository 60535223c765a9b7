package identity

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-jose/go-jose/v4/json"

	"github.com/pullpass/pullpass/internal/base/term"
)

const (
	maxClaims = 100
	// maxValues bounds the number of values, including nested ones. Some issuers list the groups of
	// the user who runs a job, 200 at most.
	maxValues = 1000
	maxDepth  = 4 // includes the object that holds the claims

	// maxExact is the smallest number whose neighbors a float64 cannot distinguish. All numbers
	// from there on are integral. Each becomes an int64: the minimum or the maximum if it does not
	// fit.
	maxExact = 1 << 53
)

// Parse reads the payload of a token. The caller has checked its length and its UTF-8. Duplicate
// members are refused at any depth, and so are payloads that are larger or deeper than issuers
// write. The error describes the token: "has …".
//
// Claims of Kubernetes are refused. A token with such claims belongs to a ServiceAccount and must
// not be checked as another kind of token.
func Parse(payload []byte) (Claims, error) {
	// The decoder is recursive.
	if IsNestedDeeper(payload, maxDepth) {
		return nil, fmt.Errorf("has claims that are nested more than %d deep", maxDepth)
	}
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.SetNumberType(json.UnmarshalIntOrFloat)
	var read map[string]any
	if err := decoder.Decode(&read); err != nil {
		return nil, errors.New("is not a JSON object with distinct members")
	}
	var more any
	if read == nil || !errors.Is(decoder.Decode(&more), io.EOF) {
		return nil, errors.New("is not one JSON object")
	}
	if len(read) > maxClaims {
		return nil, fmt.Errorf("has more than %d claims", maxClaims)
	}
	left := maxValues
	for name, value := range read {
		if name == "kubernetes.io" || strings.HasPrefix(name, "kubernetes.io/") {
			return nil, errors.New("has claims of a ServiceAccount; the issuer of a cluster belongs into clusters[]")
		}
		value, err := normal(value, &left)
		if err != nil {
			return nil, fmt.Errorf("has a claim %s that %w", term.QuoteName(name), err)
		}
		if value == nil {
			delete(read, name)
			continue
		}
		read[name] = value
	}
	return read, nil
}

// normal turns a value into one of the types that Claims has. A null counts as missing and is left
// out.
func normal(value any, left *int) (any, error) {
	if *left--; *left < 0 {
		return nil, fmt.Errorf("is one value too many; a token has at most %d", maxValues)
	}
	switch v := value.(type) {
	case int64:
		if v >= maxExact || v <= -maxExact {
			return nil, errors.New("is a number too large to be compared")
		}
	case []any:
		return normalList(v, left)
	case map[string]any:
		for name, member := range v {
			member, err := normal(member, left)
			if err != nil {
				return nil, err
			}
			if member == nil {
				delete(v, name)
				continue
			}
			v[name] = member
		}
	}
	return value, nil
}

func normalList(all []any, left *int) (any, error) {
	texts := make([]string, 0, len(all))
	for i, member := range all {
		member, err := normal(member, left)
		if err != nil {
			return nil, err
		}
		if member == nil {
			return nil, errors.New("is a list with null")
		}
		all[i] = member
		if text, ok := member.(string); ok {
			texts = append(texts, text)
		}
	}
	if len(texts) == len(all) {
		return texts, nil
	}
	return all, nil
}

// IsNestedDeeper reports whether a JSON text is nested more than most deep.
func IsNestedDeeper(text []byte, most int) bool {
	brackets := bytes.Count(text, []byte{'{'}) + bytes.Count(text, []byte{'['})
	return brackets > most && depth(text) > most // most texts are counted alone, which is fast
}

// depth returns how deep a JSON text is nested. The decoder refuses a text that is not JSON.
func depth(text []byte) int {
	deepest, now, inText := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}
