package pullpass_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

// programList says which programs tests may look up, and where they come from.
const programList = ".ci/programs"

// programTargets are the targets of make that install what they need.
var programTargets = []string{"test", "loadtest", "e2e"}

// ownPrograms is what runs the tests: the toolchain, and the test itself.
var ownPrograms = []string{"go", "/proc/self/exe"}

var programExamples = []example{
	{testProgram("a/a_test.go", `func TestA(t *testing.T) { exec.Command("jq") }`), "a/a_test.go:2: jq"},
	{testProgram("a/a_test.go", `func TestA(t *testing.T) { exec.CommandContext(t.Context(), "jq", ".") }`), "a/a_test.go:2: jq"},
	{testProgram("a/a_test.go", `func TestA(t *testing.T) { exec.LookPath("jq") }`), "a/a_test.go:2: jq"},
	{testProgram("a/a_test.go", "const tool = `/usr/bin/jq`\nfunc TestA(t *testing.T) { exec.Command(tool) }"), "a/a_test.go:2: /usr/bin/jq"},
	{testProgram("a/a_test.go", `func TestA(t *testing.T) { name := "jq"; exec.Command(name) }`), "a/a_test.go:2: jq"},
	{testProgram("a/a_test.go", `func TestA(t *testing.T) { for _, name := range []string{"tar", "jq"} { exec.Command(name) } }`), "a/a_test.go:2: jq"},
	{testProgram("a/a_test.go", `func TestA(t *testing.T) { exec.Command("haproxy") }`), "test  haproxy"},    // the list has it for e2e alone
	{testProgram("e2e/a_test.go", `func TestA(t *testing.T) { exec.Command("tar") }`), "e2e  tar"},           // … for test alone
	{testProgram("loadtest/a.go", `func start() { exec.Command("tar") }`), "loadtest  tar"},                  // … for test alone
	{testProgram("internal/a/atest/a.go", `func Start() { exec.Command("jq") }`), "internal/a/atest/a.go:2"}, // a test suite
	{testProgram("a/a_test.go", "func TestA(t *testing.T) { run(t, `jq`) }\nfunc run(t *testing.T, name string) { exec.Command(name) }"), "a/a_test.go:2: jq"},
	{testProgram("a/a_test.go", "func TestA(t *testing.T) { run(t, `jq`) }\nfunc run(t *testing.T, args ...string) { exec.Command(args[0], args[1:]...) }"), "a/a_test.go:2: jq"},
	{testProgram("a/a_test.go", "func TestA(t *testing.T) { try(t, `jq`, `.`) }\nfunc try(t *testing.T, args ...string) { run(``, args...) }\n"+
		"func run(input string, args ...string) { exec.Command(args[0]) }"), "a/a_test.go:2: jq"},
	{testProgram("a/a_test.go", "func TestA(t *testing.T) { v.command(`jq`) }\nfunc (v view) command(program string) { exec.Command(`tar`, `--`, program) }"), "a/a_test.go:2: jq"},
	{project{files: map[string]string{
		programList:   "e2e git git\n",
		"e2e/n/a.go":  "package n\nfunc (n *Node) Command(program string) { exec.Command(`git`, program) }",
		"e2e/nt/a.go": "package nt\nfunc f() { s.node.Command(`jq`) }",
	}}, "e2e/nt/a.go:2: jq"},
	{project{files: map[string]string{programList: "test tar\n"}}, programList + ":1: no package"},
	{project{files: map[string]string{programList: "test tar tar\ntests jq jq\n"}}, programList + ":2: tests"},
}

// testProgram is a test that runs programs, and a list.
func testProgram(name, content string) project {
	return project{files: map[string]string{
		name:        "package " + strings.TrimSuffix(path.Base(path.Dir(name)), "_test") + "\n" + content,
		programList: "# a comment\n\ntest  tar  tar\ntest git git\ne2e haproxy haproxy\n",
	}}
}

// testProgramsAreListed follows the names of programs from where they are written
// to package exec: through constants, variables, functions that pass a parameter
// on, and into parameters that are called program. It does not know types: all
// functions of one name in a directory are one, as are exported methods anywhere.
func testProgramsAreListed(p project) (violations []string) {
	listed, violations := p.programs()
	files := p.goFiles()
	runners := map[runner]int{}
	for known := -1; known < len(runners); { // a function may pass its parameter on to the next
		known = len(runners)
		for _, file := range files {
			file.findRunners(runners)
		}
	}
	for _, file := range files {
		target := file.target()
		file.programs(runners, func(at ast.Node, program string) {
			if !slices.Contains(ownPrograms, program) && !slices.Contains(listed[target], program) {
				violations = append(violations, fmt.Sprintf("%s: %s is not in %s: add a line %q with its Debian package", file.at(at), program, programList, target+"  "+program))
			}
		})
	}
	return violations
}

// programs reads the list, by target of make.
func (p project) programs() (listed map[string][]string, violations []string) {
	listed = map[string][]string{}
	for i, line := range strings.Split(p.files[programList], "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) < 3 {
			violations = append(violations, fmt.Sprintf("%s:%d: no package", programList, i+1))
			continue
		}
		for target := range strings.SplitSeq(fields[0], ",") {
			if !slices.Contains(programTargets, target) {
				violations = append(violations, fmt.Sprintf("%s:%d: %s is none of %q", programList, i+1, target, programTargets))
			}
			listed[target] = append(listed[target], fields[1])
		}
	}
	return listed, violations
}

// target is that of make which runs the file.
func (f goFile) target() string {
	switch {
	case within(f.path, "e2e"):
		return "e2e"
	case within(f.path, "loadtest") && !f.isTest():
		return "loadtest"
	default:
		return "test"
	}
}

// runner is a function one of whose arguments is a program to run.
type runner struct{ dir, name string }

// The only functions that look programs up. LookPath's callers run what it finds.
var lookups = map[string]int{"exec.Command": 0, "exec.CommandContext": 1, "exec.LookPath": 0}

// program returns the argument of a call that is the name of a program.
func (f goFile) program(call *ast.CallExpr, runners map[runner]int) (argument ast.Expr, ok bool) {
	i := 0
	switch function := call.Fun.(type) {
	case *ast.Ident:
		i, ok = runners[runner{path.Dir(f.path), function.Name}]
	case *ast.SelectorExpr:
		if x, isName := function.X.(*ast.Ident); isName {
			i, ok = lookups[x.Name+"."+function.Sel.Name]
		}
		for _, dir := range []string{path.Dir(f.path), ""} {
			if !ok {
				i, ok = runners[runner{dir, function.Sel.Name}]
			}
		}
	}
	if !ok || i >= len(call.Args) {
		return nil, false
	}
	return call.Args[i], true
}

// findRunners adds the functions of the file that give a parameter to a runner, or have one called program.
func (f goFile) findRunners(runners map[runner]int) {
	for _, declaration := range f.syntax.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || function.Body == nil {
			continue
		}
		add := func(name string) {
			for i, parameter := range parameters(function) {
				if parameter != name {
					continue
				}
				runners[runner{path.Dir(f.path), function.Name.Name}] = i
				if function.Recv != nil && function.Name.IsExported() {
					runners[runner{"", function.Name.Name}] = i
				}
			}
		}
		add("program")
		ast.Inspect(function.Body, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if argument, ok := f.program(call, runners); ok {
					if index, ok := argument.(*ast.IndexExpr); ok { // args[0]
						argument = index.X
					}
					if name, ok := argument.(*ast.Ident); ok {
						add(name.Name)
					}
				}
			}
			return true
		})
	}
}

// parameters returns a function's parameters by position.
func parameters(function *ast.FuncDecl) (names []string) {
	for _, field := range function.Type.Params.List {
		for _, name := range field.Names {
			names = append(names, name.Name)
		}
	}
	return names
}

// programs reports each name of a program that the file has.
func (f goFile) programs(runners map[runner]int, report func(at ast.Node, program string)) {
	for _, declaration := range f.syntax.Decls {
		ast.Inspect(declaration, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			argument, ok := f.program(call, runners)
			if !ok {
				return true
			}
			for _, value := range append(f.values(declaration, argument), argument) {
				if literal, ok := value.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					if program, err := strconv.Unquote(literal.Value); err == nil {
						report(literal, program)
					}
				}
			}
			return true
		})
	}
}

// values returns the possible values of a name: those of a constant of the file or of a variable of the declaration.
func (f goFile) values(declaration ast.Decl, argument ast.Expr) (values []ast.Expr) {
	name, ok := argument.(*ast.Ident)
	if !ok {
		return nil
	}
	named := func(e ast.Expr) bool { x, ok := e.(*ast.Ident); return ok && x.Name == name.Name }
	scopes := []ast.Node{declaration}
	for _, d := range f.syntax.Decls {
		if general, ok := d.(*ast.GenDecl); ok && general != declaration {
			scopes = append(scopes, general)
		}
	}
	for _, scope := range scopes {
		ast.Inspect(scope, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, x := range n.Names {
					if x.Name == name.Name && i < len(n.Values) {
						values = append(values, n.Values[i])
					}
				}
			case *ast.AssignStmt:
				for i, x := range n.Lhs {
					if named(x) && i < len(n.Rhs) {
						values = append(values, n.Rhs[i])
					}
				}
			case *ast.RangeStmt:
				if list, ok := n.X.(*ast.CompositeLit); ok && n.Value != nil && named(n.Value) {
					values = append(values, list.Elts...)
				}
			}
			return true
		})
	}
	return values
}
