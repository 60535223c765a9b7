package credential

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// field is a member of a JSON object and a pointer to where its value goes.
type field struct {
	name  string
	value any
}

// decode reads members of an object. It ignores others, because a newer API
// server may write more. The errors are texts of our own: those of encoding/json
// can hold pieces of the input.
func decode(object []byte, fields ...field) error {
	values, err := members(object)
	if err != nil {
		return err
	}
	for _, f := range fields {
		if value, found := values[f.name]; found && json.Unmarshal(value, f.value) != nil {
			return fmt.Errorf("%q has the wrong type", f.name)
		}
	}
	return nil
}

// members splits an object. Unlike encoding/json it matches names exactly and
// refuses one that is there twice, of which another reader could take the other.
func members(object []byte) (map[string]json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(object))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return nil, errNoObject
	}
	values := map[string]json.RawMessage{}
	for decoder.More() {
		token, _ := decoder.Token() // no name with an error
		name, isName := token.(string)
		var value json.RawMessage
		if !isName || decoder.Decode(&value) != nil {
			return nil, errNoObject
		}
		if _, found := values[name]; found {
			return nil, errors.New("a name is there twice in the JSON")
		}
		values[name] = value
	}
	if _, err := decoder.Token(); err != nil {
		return nil, errNoObject
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errNoObject
	}
	return values, nil
}

var errNoObject = errors.New("not one JSON object")
