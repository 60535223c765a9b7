package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
)

// mutant is one change of a file.
type mutant struct {
	id          int
	pkg         string // import path
	file        string // in the module, with slashes
	first, last int    // lines
	function    string
	change      string // "source -> replacement"

	verdict   verdict
	uncovered bool // so far, no test reaches it
}

// key names a mutant in the list. It has no line, so it survives changes elsewhere in the file.
func (m *mutant) key() string {
	return strings.TrimSpace(m.file+" "+m.function) + ": " + m.change
}

func (m *mutant) String() string {
	return fmt.Sprintf("%s:%d", m.file, m.first) + strings.TrimPrefix(m.key(), m.file)
}

// maker rewrites one file. It inserts text within lines, so each line keeps its number.
type maker struct {
	catalogue catalogue
	tokens    *token.FileSet
	source    string
	next      int
	in        mutant
	results   [][]bool // of the functions around: which are bool
	prefixes  []edit
	suffixes  []edit
	seen      map[ast.Node]bool
	keys      map[string]int
	banned    map[int]bool
	mutants   []*mutant
}

type edit struct {
	from, to int
	text     string
}

// mutate returns the rewritten source and its mutants, with ids from next on. No mutant is on a banned line.
func mutate(pkg, file, source string, next int, c catalogue, banned map[int]bool) (string, []*mutant, error) {
	m := &maker{catalogue: c, tokens: token.NewFileSet(), source: source, next: next, in: mutant{pkg: pkg, file: file},
		seen: map[ast.Node]bool{}, keys: map[string]int{}, banned: banned}
	syntax, err := parser.ParseFile(m.tokens, file, source, parser.SkipObjectResolution)
	if err != nil {
		return "", nil, err
	}
	for _, declaration := range syntax.Decls {
		m.in.function = ""
		if f, ok := declaration.(*ast.FuncDecl); ok {
			m.in.function = f.Name.Name
			if f.Recv != nil {
				m.in.function = strings.TrimLeft(m.text(f.Recv.List[0].Type), "*") + "." + f.Name.Name
			}
		}
		m.walk(declaration)
	}

	// At one place, suffixes come before prefixes, an inner suffix before an outer one, and an outer prefix before an inner one.
	slices.Reverse(m.suffixes)
	edits := append(m.suffixes, m.prefixes...)
	slices.SortStableFunc(edits, func(a, b edit) int { return a.from - b.from })
	var out strings.Builder
	at := 0
	for _, e := range edits {
		out.WriteString(source[at:e.from] + e.text)
		at = e.to
	}
	out.WriteString(source[at:])
	return out.String(), m.mutants, nil
}

func (m *maker) walk(root ast.Node) {
	var stack []ast.Node
	ast.Inspect(root, func(n ast.Node) bool {
		if n == nil {
			if functionType(stack[len(stack)-1]) != nil {
				m.results = m.results[:len(m.results)-1]
			}
			stack = stack[:len(stack)-1]
			return false
		}
		if d, ok := n.(*ast.GenDecl); ok && d.Tok != token.VAR {
			return false
		}
		if _, ok := n.(*ast.ArrayType); ok {
			return false
		}
		if f := functionType(n); f != nil {
			m.results = append(m.results, boolResults(f))
		}
		stack = append(stack, n)
		m.visit(n)
		return true
	})
}

func functionType(n ast.Node) *ast.FuncType {
	switch n := n.(type) {
	case *ast.FuncDecl:
		return n.Type
	case *ast.FuncLit:
		return n.Type
	}
	return nil
}

func boolResults(f *ast.FuncType) (bools []bool) {
	if f.Results == nil {
		return nil
	}
	for _, field := range f.Results.List {
		name, ok := field.Type.(*ast.Ident)
		for range max(1, len(field.Names)) {
			bools = append(bools, ok && name.Name == "bool")
		}
	}
	return bools
}

var (
	// moved has the comparison with the limit moved by one, and the function that is either.
	moved = map[token.Token]struct{ op, function string }{
		token.LSS: {"<=", "mutantLess"}, token.LEQ: {"<", "mutantLessEqual"}, token.GTR: {">=", "mutantGreater"}, token.GEQ: {">", "mutantGreaterEqual"},
	}
	logical    = []token.Token{token.LAND, token.LOR}
	comparison = []token.Token{token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ}
)

func (m *maker) visit(n ast.Node) {
	switch n := n.(type) {
	case *ast.IfStmt:
		m.condition(n.Cond, !refuses(n.Body))
	case *ast.ForStmt:
		if n.Cond != nil {
			m.condition(n.Cond, false)
		}
	case *ast.SwitchStmt:
		for _, clause := range n.Body.List {
			for _, e := range clause.(*ast.CaseClause).List {
				if n.Tag == nil {
					m.condition(e, true)
				} else {
					m.caseValue(e, n.Tag)
				}
			}
		}
	case *ast.ReturnStmt:
		bools := m.results[len(m.results)-1]
		for i, e := range n.Results {
			if len(bools) == len(n.Results) && bools[i] {
				m.condition(e, true)
			}
		}
	case *ast.BinaryExpr:
		if slices.Contains(logical, n.Op) || slices.Contains(comparison, n.Op) {
			m.condition(n, true)
		}
		m.moveLimit(n)
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			m.condition(n, true)
		}
	case *ast.SelectorExpr:
		if m.text(n.X) == "refusal" {
			m.replace(n, m.catalogue[n.Sel.Name], "refusal.")
		}
	case *ast.CompositeLit: // an entry of the catalogue: reason, class, texts
		if n.Type == nil && len(n.Elts) == 4 {
			m.replace(n.Elts[0], m.catalogue[m.text(n.Elts[0])], "")
			m.replace(n.Elts[1], m.catalogue[m.text(n.Elts[1])], "")
		}
	case *ast.KeyValueExpr: // a class and its status
		if m.catalogue[m.text(n.Key)] != "" && strings.HasPrefix(m.text(n.Value), "http.Status") {
			m.replace(n.Value, "http.StatusTeapot", "")
		}
	}
}

// refuses tells the body of "if … { return err }". Each test of a success finds that such a body always runs.
func refuses(body *ast.BlockStmt) bool {
	if len(body.List) == 0 {
		return false
	}
	last, ok := body.List[len(body.List)-1].(*ast.ReturnStmt)
	if !ok || len(last.Results) == 0 {
		return false
	}
	name, ok := last.Results[len(last.Results)-1].(*ast.Ident)
	return !ok || name.Name != "nil" && name.Name != "true"
}

// bare removes parentheses and negations.
func (m *maker) bare(e ast.Expr) (bare ast.Expr, negated bool) {
	for {
		m.seen[e] = true
		switch inner := e.(type) {
		case *ast.ParenExpr:
			e = inner.X
		case *ast.UnaryExpr:
			if inner.Op != token.NOT {
				return e, negated
			}
			e, negated = inner.X, !negated
		default:
			return e, negated
		}
	}
}

// condition makes the whole condition false and true, and each part of it ineffective. "a && b" is not made true: without a, or
// without b, it is true more often already.
func (m *maker) condition(e ast.Expr, both bool) {
	if m.seen[e] {
		return
	}
	bare, negated := m.bare(e)
	b, ok := bare.(*ast.BinaryExpr)
	switch ok = ok && slices.Contains(logical, b.Op); {
	case ok:
		m.force(e, (b.Op == token.LOR) != negated)
		m.operands(b)
	case m.text(bare) == "true" || m.text(bare) == "false":
		m.force(e, m.text(bare) == "false")
	default:
		m.force(e, false)
		if both {
			m.force(e, true)
		}
	}
}

func (m *maker) operands(b *ast.BinaryExpr) {
	for _, e := range []ast.Expr{b.X, b.Y} {
		bare, negated := m.bare(e)
		inner, ok := bare.(*ast.BinaryExpr)
		ok = ok && slices.Contains(logical, inner.Op)
		if !ok || negated || inner.Op != b.Op {
			m.force(e, b.Op == token.LAND)
		}
		if ok {
			m.operands(inner)
		}
	}
}

// force gives a condition a value. A comparison is an untyped boolean, so it goes with each boolean type.
func (m *maker) force(e ast.Expr, value bool) {
	op := "&&"
	if value {
		op = "||"
	}
	if id := m.add(e, strconv.FormatBool(value)); id > 0 {
		m.wrap(e, "((", fmt.Sprintf(") %s (mutantOn(%d) == %t))", op, id, value))
	}
}

// moveLimit moves the limit of a comparison by one. A length is never below zero.
func (m *maker) moveLimit(b *ast.BinaryExpr) {
	to, ok := moved[b.Op]
	if !ok || strings.HasPrefix(m.text(b.X), "len(") && m.text(b.Y) == "0" {
		return
	}
	if id := m.add(b, m.text(b.X)+" "+to.op+" "+m.text(b.Y)); id > 0 {
		m.wrap(b, fmt.Sprintf("(%s(%d, ", to.function, id), ") == true)")
		at := m.offset(b.OpPos)
		m.prefixes = append(m.prefixes, edit{at, at + len(b.Op.String()), ","})
	}
}

// caseValue makes a value of a switch one that does not occur. The tag gives a constant its type.
func (m *maker) caseValue(e, tag ast.Expr) {
	m.seen[e] = true
	like := e
	switch tag.(type) {
	case *ast.Ident, *ast.SelectorExpr, *ast.IndexExpr:
		like = tag
	}
	if id := m.add(e, "no case"); id > 0 {
		m.wrap(e, fmt.Sprintf("mutantCase(%d, %s, ", id, m.text(like)), ")")
	}
}

func (m *maker) replace(e ast.Expr, other, prefix string) {
	if m.seen[e] || other == "" {
		return
	}
	m.seen[e] = true
	if id := m.add(e, other); id > 0 {
		m.wrap(e, fmt.Sprintf("mutantPick(%d, ", id), ", "+prefix+other+")")
	}
}

// add returns the id of a new mutant, or 0 where it does not compile.
func (m *maker) add(n ast.Node, replacement string) int {
	made := m.in
	made.id, made.change, made.uncovered = m.next, m.text(n)+" -> "+replacement, true
	made.first, made.last = m.tokens.Position(n.Pos()).Line, m.tokens.Position(n.End()).Line
	m.keys[made.key()]++
	if count := m.keys[made.key()]; count > 1 {
		made.change += fmt.Sprintf(" (%d)", count)
	}
	for line := made.first; line <= made.last; line++ {
		if m.banned[line] {
			return 0
		}
	}
	m.next++
	m.mutants = append(m.mutants, &made)
	return made.id
}

func (m *maker) wrap(n ast.Node, prefix, suffix string) {
	from, to := m.offset(n.Pos()), m.offset(n.End())
	m.prefixes = append(m.prefixes, edit{from, from, prefix})
	m.suffixes = append(m.suffixes, edit{to, to, suffix})
}

func (m *maker) offset(p token.Pos) int { return m.tokens.Position(p).Offset }

// text is the source of a node in one line.
func (m *maker) text(n ast.Node) string {
	return strings.Join(strings.Fields(m.source[m.offset(n.Pos()):m.offset(n.End())]), " ")
}

// catalogue has a different reason for each reason of a refusal, of the same class if there is one, and a different class for each class.
type catalogue map[string]string

// readCatalogue finds the entries in these files: {Reason, Class, "meaning", "remedy"}.
func readCatalogue(files []string) (catalogue, error) {
	var entries [][2]string
	for _, name := range files {
		syntax, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(syntax, func(n ast.Node) bool {
			if entry, ok := n.(*ast.CompositeLit); ok && entry.Type == nil && len(entry.Elts) == 4 {
				reason, isName := entry.Elts[0].(*ast.Ident)
				class, isClass := entry.Elts[1].(*ast.Ident)
				if isName && isClass {
					entries = append(entries, [2]string{reason.Name, class.Name})
				}
			}
			return true
		})
	}
	c := catalogue{}
	for i, entry := range entries {
		others := slices.Concat(entries[i+1:], entries[:i])
		for _, other := range others {
			if c[entry[0]] == "" && other[1] == entry[1] {
				c[entry[0]] = other[0]
			}
			if c[entry[1]] == "" && other[1] != entry[1] {
				c[entry[1]] = other[1]
			}
		}
		if c[entry[0]] == "" && len(others) > 0 {
			c[entry[0]] = others[0][0]
		}
	}
	return c, nil
}
