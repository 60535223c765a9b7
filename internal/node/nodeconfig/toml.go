package nodeconfig

import "strings"

// tomlTable is a table of a hosts.toml with its relevant keys.
type tomlTable struct {
	name string // as written; empty: the top level of the file
	line int
	keys map[string]tomlValue
}

type tomlValue struct {
	text   string // without the quotes of a string
	line   int
	quoted bool
}

func (v tomlValue) isBool() bool { return !v.quoted && (v.text == "true" || v.text == "false") }

// readTOML reads the part of TOML that a hosts.toml uses: tables, and keys with strings, lists and
// words. Other syntax becomes a finding, because it cannot be judged. It keeps line numbers, which
// a parser does not.
func (l *linter) readTOML(name string, data []byte) []*tomlTable {
	tables := []*tomlTable{{line: 1, keys: map[string]tomlValue{}}}
	open, list := 0, ""
	where := `below [host."URL"]`
	if l.target.Gateway != "" {
		where = "above [host]"
	}
	for i, text := range strings.Split(string(data), "\n") {
		code, depth, closed := tomlCode(text)
		table := tables[len(tables)-1]
		key, value, isKey := strings.Cut(code, "=")
		key = strings.Trim(key, " \t\"'")
		isCased := key != strings.ToLower(key) && !strings.HasSuffix(table.name, "header") // containerd reads SERVER, too
		switch {
		case !closed:
			l.find(at(name, i+1, ""), "has a string that does not end on its line; write it on one line")
		case open > 0:
			v := table.keys[list]
			v.text += code
			table.keys[list] = v
			open += depth
		case code == "":
		case strings.HasPrefix(code, "[") && strings.HasSuffix(code, "]") && !strings.HasPrefix(code, "[["):
			tables = append(tables, &tomlTable{strings.TrimSpace(code[1 : len(code)-1]), i + 1, map[string]tomlValue{}})
		case isKey && !isCased && !strings.ContainsAny(key, `."' \`) && !strings.HasPrefix(strings.TrimSpace(value), "{"):
			value = strings.TrimSpace(value)
			quoted := len(value) > 1 && (value[0] == '"' || value[0] == '\'')
			if quoted {
				value = value[1 : len(value)-1]
			}
			if _, twice := table.keys[key]; twice {
				l.find(at(name, i+1, key), "is there twice; keep one")
			}
			table.keys[key] = tomlValue{value, i + 1, quoted}
			open, list = depth, key
		default:
			l.find(at(name, i+1, ""), `is not read here; write each setting as KEY = VALUE on a line of its own, with the key in lower case, %s`, where)
		}
	}
	return tables
}

// tomlCode returns a line without its comment, the number of brackets that stay open, and whether
// every string on it ends.
func tomlCode(line string) (code string, depth int, closed bool) {
	quote := byte(0)
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quote != 0:
			if c == '\\' && quote == '"' {
				i++
			} else if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '#':
			return strings.TrimSpace(line[:i]), depth, true
		case c == '[':
			depth++
		case c == ']':
			depth--
		}
	}
	return strings.TrimSpace(line), depth, quote == 0
}
