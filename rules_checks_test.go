package pullpass_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
)

// pemHeader is put together here so that this file holds no private key.
const pemHeader = "-----BEGIN " + "PRIVATE KEY-----"

var rules = []rule{
	{"the rules see the project", essentialPackagesExist, []example{
		{project{packages: packagesIn("internal/oidc", "internal/registryauth/signing", "internal/registryauth", "internal/exchange", "cmd/proxy")}, "cmd/credential-provider"},
	}},
	{"imports between rooms run one way", roomImports, []example{
		{importing("internal/oidc", module+"/internal/registryauth"), "internal/oidc imports " + module + "/internal/registryauth"},
		{importing("internal/registryauth/signing", module+"/internal/exchange"), "internal/registryauth/signing imports " + module + "/internal/exchange"},
		{importing("internal/exchange", module+"/internal/state"), "internal/exchange imports " + module + "/internal/state"},
		{importing("internal/cluster/kube", module+"/internal/state"), "internal/cluster/kube imports " + module + "/internal/state"},
		{importing("internal/state", module+"/cmd/proxy"), "internal/state imports " + module + "/cmd/proxy"},
		{importing("cmd/demo", module+"/cmd/proxy"), "cmd/demo imports " + module + "/cmd/proxy"},
		{importing("internal/state", module+"/internal/test/testkit"), "internal/state imports " + module + "/internal/test/testkit"},
		{importing("internal/new", "fmt"), "internal/new is in no room"},
		{project{packages: []listedPackage{{ImportPath: module + "/internal/oidc", TestImports: []string{module + "/internal/exchange"}}}}, "internal/exchange"},
		{project{packages: []listedPackage{{ImportPath: module + "/internal/oidc", XTestImports: []string{module + "/internal/cluster/kube"}}}}, "internal/cluster/kube"},
	}},
	{"libraries are imported where they may", libraryImports, []example{
		{importing("internal/oidc", "github.com/go-chi/chi/v5/middleware"), "github.com/go-chi/chi/v5/middleware"},
		{importing("internal/registryauth/signing", "github.com/go-jose/go-jose/v4evil"), "go-jose/v4evil"},
		{importing("internal/registryauth", "github.com/distribution/distribution/v3/registry/auth"), "distribution/v3/registry/auth"},
		{importing("cmd/credential-provider", "golang.org/x/sync/errgroup"), "golang.org/x/sync/errgroup"},
		{importing("internal/oidc/identity", "github.com/spf13/cobra"), "internal/oidc/identity imports github.com/spf13/cobra"},
		{importing("internal/state", "go.opentelemetry.io/otel/sdk/trace"), "otel/sdk/trace"},
	}},
	{"packages do not reach what unreachable lists", indirectImports, []example{
		{reaching("internal/exchange", "k8s.io/client-go/rest"), "reaches k8s.io/client-go/rest"},
		{reaching("internal/exchange", "github.com/prometheus/client_golang/prometheus"), "client_golang"},
		{reaching("internal/exchange", "go.opentelemetry.io/otel/sdk/trace"), "otel/sdk/trace"},
		{reaching("cmd/proxy", "github.com/distribution/distribution/v3/registry/handlers"), "registry/handlers"},
		{reaching("cmd/credential-provider", "net/http"), "net/http"},
		{reaching("cmd/credential-provider", "crypto/sha256"), "crypto/sha256"},
	}},
	{"production code does not reach testing", testingInProduction, []example{
		{reaching("cmd/proxy", "testing"), "cmd/proxy reaches testing"},
		{reaching("internal/state", "testing/synctest"), "internal/state reaches testing/synctest"},
		{reaching("internal/latest", "testing"), "internal/latest reaches testing"},
		{reaching("internal/testing", "testing"), "internal/testing reaches testing"},
	}},
	{"packages have a doc comment", packageDocs, []example{
		{sources("a/a.go", "package a"), "a: no package doc"},
		{sources("a/a.go", "// Some text.\n\npackage a"), "a: no package doc"},
	}},
	{"packages are named for their content", packageNames, []example{
		{sources("internal/util/a.go", "package util"), "internal/util/a.go"},
		{sources("pkg/a/a.go", "package a"), "pkg/a/a.go"},
		{sources("a/a.go", "package types"), "a/a.go"},
		{sources("a/a_test.go", "package common_test"), "a/a_test.go"},
	}},
	{"no build results", largeFiles, []example{
		{sources("proxy", strings.Repeat("x", maxFileBytes+1)), "proxy: 1048577 bytes"},
	}},
	{"go.mod replaces nothing", noReplace, []example{
		{sources("go.mod", "module m\nreplace a => ../a\n"), "go.mod:2"},
		{sources("go.mod", "module m\n\nreplace (\n\ta => ../a\n)\n"), "go.mod:3"},
		{sources("go.mod", "module m\nreplace(\n)\n"), "go.mod:2"},
	}},
	{"the page of versions has those that tests build", versionsOnPage, []example{
		{versionsOf("containerd 2.4.1"), "e2e/containerd/go.mod builds 2.4.2"},
		{versionsOf("containerd **2.4.2**, etcd **3.4.23**"), "**3.4.23** is built by no test"},
	}},
	{"imports that no production code needs", forbiddenImports, []example{
		{sources("internal/registryauth/a.go", "package a\nimport \"math/rand\""), "math/rand"},
		{sources("cmd/proxy/a.go", "package a\nimport r \"math/rand/v2\""), "math/rand/v2"},
		{sources("internal/exchange/policy/a.go", "package a\nimport \"regexp\""), "regexp"},
	}},
	{"files are read by package file", fileReads, []example{
		{sources("internal/oidc/a.go", "package a\nfunc f() { os.ReadFile(\"a\") }"), "internal/oidc/a.go:2: os.ReadFile"},
		{sources("cmd/proxy/a.go", "package a\nvar f, err = os.Open(\"a\")"), "cmd/proxy/a.go:2: os.Open"},
		{sources("cmd/proxy/b.go", "package a\nvar open = os.OpenFile"), "os.OpenFile"},
		{sources("internal/cluster/kube/a.go", "package a\nvar r, err = os.OpenRoot(\"a\")"), "os.OpenRoot"},
		{sources("internal/cluster/kube/b.go", "package a\nvar a = os.DirFS(\"a\")"), "os.DirFS"},
		{sources("internal/state/a.go", "package a\nvar a, err = syscall.Open(\"a\", 0, 0)"), "syscall.Open"},
		{sources("internal/state/b.go", "package a\nvar a, err = ioutil.ReadFile(\"a\")"), "ioutil.ReadFile"},
	}},
	{"production code takes its inputs as parameters", ambientInputs, []example{
		{sources("internal/oidc/a.go", "package a\nvar c = http.DefaultClient"), "internal/oidc/a.go:2: http.DefaultClient"},
		{sources("internal/oidc/a.go", "package a\nvar c = http.DefaultTransport.(*http.Transport).Clone()"), "http.DefaultTransport"},
		{sources("cmd/proxy/a.go", "package a\nfunc f() { http.Get(url) }"), "http.Get"},
		{sources("internal/oidc/a.go", "package a\nfunc f() { os.Getenv(\"A\") }"), "os.Getenv"},
		{sources("credential/a.go", "package a\nfunc f() { os.Getenv(\"A\") }"), "os.Getenv"},
		{sources("internal/oidc/a.go", "package a\nfunc init() {}"), "func init"},
	}},
	{"tests do not skip", noSkippedTests, []example{
		{sources("a/a_test.go", "package a\nfunc TestA(t *testing.T) { t.Skip() }"), "a/a_test.go:2"},
		{sources("e2e/a.go", "package a\nfunc start(tb testing.TB) { tb.Skipf(\"no etcd\") }"), "e2e/a.go:2"},
		{sources("a/a_test.go", "package a\nfunc FuzzA(f *testing.F) { f.SkipNow() }"), "a/a_test.go:2"},
	}},
	{"fuzz targets have a saved corpus, which go test runs", fuzzCorpora, []example{
		{sources("a/a_test.go", "package a\nfunc FuzzA(f *testing.F) {}"), "a/a_test.go:2: FuzzA"},
	}},
	{"programs that tests run are in .ci/programs", testProgramsAreListed, programExamples},
	{"no private keys", noPrivateKeys, []example{
		{sources("examples/tls.txt", "x\n"+pemHeader+"\n"), "examples/tls.txt"},
		{sources("examples/tls.txt", strings.Replace(pemHeader, "PRIVATE", "EC PRIVATE", 1)), "examples/tls.txt"},
		{sources("examples/tls.key", ""), "examples/tls.key"},
		{sources("examples/testdata.pem", ""), "examples/testdata.pem"},
	}},
	{"tests that Markdown names exist", markdownTests, []example{
		{sources("SECURITY.md", "see `TestGone`"), "SECURITY.md: TestGone"},
	}},
	{"links in Markdown lead to files and headings", markdownLinks, []example{
		{sources("README.md", "see [the design](docs/design.md#flow)"), "README.md:1: docs/design.md"},
		{sources("docs/a.md", "```\ncode\n```\n[up](README.md)"), "docs/a.md:4: README.md"},
		{sources("README.md", "`code` [a](b.md) and ![c](/README.md)"), "b.md"},
		{sources("README.md", "[out](../other/README.md)"), "../other/README.md"},
		{sources("README.md", "# Part\n[below](#parts)"), "README.md has no heading #parts"},
		{sources("README.md", "[b](README.md#two)\n# One\n```\n# Two\n```"), "README.md has no heading #two"},
		{sources("README.md", "[b](#a-1-2)\n## `a`, 1\n### a 1"), "README.md has no heading #a-1-2"},
	}},
}

func essentialPackagesExist(p project) (violations []string) {
	for _, dir := range essential {
		if !slices.ContainsFunc(p.packages, func(l listedPackage) bool { return l.dir() == dir }) {
			violations = append(violations, dir+" is not there: the rules about it check nothing")
		}
	}
	return violations
}

func roomImports(p project) (violations []string) {
	for _, pkg := range p.packages {
		if pkg.dir() == "" {
			continue // these tests
		}
		i := slices.IndexFunc(rooms, func(r room) bool { return within(pkg.dir(), r.dir) })
		if i < 0 {
			violations = append(violations, pkg.dir()+" is in no room")
			continue
		}
		own := rooms[i]
		refuse := func(imports []string, allowed ...string) {
			for _, imported := range imports {
				if dir, ours := strings.CutPrefix(imported, module+"/"); ours && !within(dir, own.dir) && !withinAny(dir, allowed) {
					violations = append(violations, pkg.dir()+" imports "+imported)
				}
			}
		}
		tests := append([]string{testHelpers}, own.tests...)
		if isTestHelper(pkg) {
			refuse(pkg.Imports, append(tests, own.uses...)...)
		} else {
			refuse(pkg.Imports, own.uses...)
		}
		refuse(slices.Concat(pkg.TestImports, pkg.XTestImports), append(tests, own.uses...)...)
	}
	return violations
}

func libraryImports(p project) (violations []string) {
	for _, pkg := range p.packages {
		for _, imported := range pkg.Imports {
			if !inStandardLibrary(imported) && !within(imported, module) && !withinAny(pkg.dir(), mayImport(imported)) && !isTestHelper(pkg) {
				violations = append(violations, pkg.dir()+" imports "+imported)
			}
		}
	}
	return violations
}

// mayImport returns the directories of the longest entry of libraries that a package is within.
func mayImport(imported string) []string {
	for ; imported != "."; imported = path.Dir(imported) {
		if dirs := libraries[imported]; dirs != nil {
			return dirs
		}
	}
	return nil
}

// inStandardLibrary relies on module paths having a dot in their first element.
func inStandardLibrary(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

func indirectImports(p project) (violations []string) {
	for _, pkg := range p.packages {
		for _, dep := range pkg.Deps {
			if dep != "net/netip" && withinAny(dep, unreachable[pkg.dir()]) { // an address is a value
				violations = append(violations, pkg.dir()+" reaches "+dep)
			}
		}
	}
	return violations
}

func testingInProduction(p project) (violations []string) {
	for _, pkg := range p.packages {
		if isTestHelper(pkg) {
			continue
		}
		for _, dep := range pkg.Deps {
			if within(dep, "testing") {
				violations = append(violations, pkg.dir()+" reaches "+dep)
			}
		}
	}
	return violations
}

// isTestHelper tells the packages of testHelpers, and test suites that are packages: their directory has the name of its parent and "test".
func isTestHelper(pkg listedPackage) bool {
	return within(pkg.dir(), testHelpers) || path.Base(pkg.dir()) == path.Base(path.Dir(pkg.dir()))+"test"
}

func packageDocs(p project) (violations []string) {
	documented := map[string]bool{}
	for _, file := range p.goFiles() {
		if !file.isTest() {
			dir := path.Dir(file.path)
			documented[dir] = documented[dir] || file.syntax.Doc != nil
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(documented)) {
		if !documented[dir] {
			violations = append(violations, dir+": no package doc")
		}
	}
	return violations
}

func packageNames(p project) (violations []string) {
	for _, file := range p.goFiles() {
		names := append(strings.Split(path.Dir(file.path), "/"), strings.TrimSuffix(file.syntax.Name.Name, "_test"))
		if i := slices.IndexFunc(names, func(name string) bool {
			return slices.Contains([]string{"util", "utils", "common", "types", "pkg"}, name)
		}); i >= 0 {
			violations = append(violations, fmt.Sprintf("%s: a package named %s says nothing about what is in it", file.path, names[i]))
		}
	}
	return violations
}

func noReplace(p project) (violations []string) {
	for i, line := range strings.Split(p.files["go.mod"], "\n") {
		if rest, found := strings.CutPrefix(line, "replace"); found && strings.TrimLeft(rest, " \t(") != rest {
			violations = append(violations, fmt.Sprintf("go.mod:%d: others could not build what we build", i+1))
		}
	}
	return violations
}

const versionsPage = "docs/reference/versions.md"

// builtModules are the modules whose versions are in bold on that page, each after the go.mod that requires it.
var builtModules = [][2]string{
	{"e2e/kubernetes/go.mod", "k8s.io/kubernetes"},
	{"e2e/oldkubelet/go.mod", "k8s.io/kubernetes"},
	{"e2e/etcd/go.mod", "go.etcd.io/etcd/server/v3"},
	{"e2e/containerd/go.mod", "github.com/containerd/containerd/v2"},
	{"e2e/crio/go.mod", "github.com/cri-o/cri-o"},
	{"e2e/compose/go.mod", "github.com/docker/compose/v5"},
	{"e2e/compose/go.mod", "github.com/docker/buildx"},
	{"e2e/buildkit/go.mod", "github.com/moby/buildkit"},
	{"e2e/clients/go.mod", "github.com/google/go-containerregistry"},
	{"e2e/clients/go.mod", "github.com/regclient/regclient"},
	{"e2e/go.mod", "oras.land/oras-go/v2"},
	{"e2e/helm/go.mod", "helm.sh/helm/v4"},
	{"e2e/distribution/go.mod", "github.com/distribution/distribution/v3"},
}

func versionsOf(page string) project {
	return project{files: map[string]string{versionsPage: page, "e2e/containerd/go.mod": "require (\n\tgithub.com/containerd/containerd/v2 v2.4.2 // indirect\n)\n"}}
}

func versionsOnPage(p project) (violations []string) {
	page, built := p.files[versionsPage], map[string]bool{}
	for _, m := range builtModules {
		_, rest, found := strings.Cut(p.files[m[0]], "\t"+m[1]+" v")
		if !found {
			continue // then its version is built by no test
		}
		version := strings.Fields(rest)[0]
		built["**"+version+"**"] = true
		if !strings.Contains(page, "**"+version+"**") {
			violations = append(violations, fmt.Sprintf("%s: %s builds %s of %s, which is not there", versionsPage, m[0], version, m[1]))
		}
	}
	for i, bold := range strings.Split(page, "**") {
		if i%2 == 1 && !built["**"+bold+"**"] {
			violations = append(violations, fmt.Sprintf("%s: **%s** is built by no test", versionsPage, bold))
		}
	}
	return violations
}

func forbiddenImports(p project) (violations []string) {
	for _, file := range p.goFiles() {
		if !file.isProduction() {
			continue
		}
		for _, spec := range file.syntax.Imports {
			switch imported := strings.Trim(spec.Path.Value, "`\""); {
			case within(imported, "math/rand"):
				violations = append(violations, file.path+": "+imported+" can be predicted: use crypto/rand")
			case imported == "regexp" && within(file.path, "internal/exchange"):
				violations = append(violations, file.path+": regexp: patterns are matched by path component")
			}
		}
	}
	return violations
}

func ambientInputs(p project) (violations []string) {
	for _, file := range p.goFiles() {
		if !file.isProduction() {
			continue
		}
		forbidden := []string{"http.DefaultClient", "http.DefaultTransport", "http.Get", "http.Head", "http.Post", "http.PostForm"}
		if !within(file.path, "cmd") && !within(file.path, testHelpers) {
			forbidden = append(forbidden, "os.Getenv", "os.LookupEnv", "os.Environ", "os.ExpandEnv")
		}
		ast.Inspect(file.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && slices.Contains(forbidden, x.Name+"."+n.Sel.Name) {
					violations = append(violations, file.at(n)+": "+x.Name+"."+n.Sel.Name+": let the caller pass it in")
				}
			case *ast.FuncDecl:
				if n.Name.Name == "init" && n.Recv == nil {
					violations = append(violations, file.at(n)+": func init: let main call it")
				}
			}
			return true
		})
	}
	return violations
}

// openers open files otherwise than package file does, each for a reason.
var openers = map[string]string{
	"internal/base/file/file.go":                  "is that package",
	"internal/registryauth/signing/manageddir.go": "locks a file and syncs a directory, and reads neither",
	"cmd/proxy/main.go":                           "passes on the root under which the kernel tells of cgroups",
	"internal/base/file/argument.go":              "reads once what its user names, which may be a pipe, and not longer than its user waits",
	"internal/server/audit/output.go":             "appends, and reads nothing",
	"internal/node/hostfs/walk.go":                "opens a host's root directory; below it, that package never waits for another process either",
}

// fileReads keeps reading from waiting for a FIFO, or for the end of a device.
func fileReads(p project) (violations []string) {
	forbidden := []string{"os.Open", "os.OpenFile", "os.ReadFile", "os.OpenRoot", "os.OpenInRoot", "os.DirFS", "syscall.Open", "ioutil.ReadFile"}
	for _, file := range p.goFiles() {
		if !file.isProduction() || !withinAny(file.path, []string{"cmd/proxy", "internal"}) || openers[file.path] != "" || within(file.path, testHelpers) {
			continue
		}
		ast.Inspect(file.syntax, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && slices.Contains(forbidden, x.Name+"."+s.Sel.Name) {
					violations = append(violations, file.at(s)+": "+x.Name+"."+s.Sel.Name+": use package file, which never blocks")
				}
			}
			return true
		})
	}
	return violations
}

// maxFileBytes is far more than any source has. A large file
// stays in git's history.
const maxFileBytes = 1 << 20

func largeFiles(p project) (violations []string) {
	for _, name := range p.paths() {
		if size := len(p.files[name]); size > maxFileBytes {
			violations = append(violations, fmt.Sprintf("%s: %d bytes", name, size))
		}
	}
	return violations
}

func noSkippedTests(p project) (violations []string) {
	for _, file := range p.goFiles() {
		ast.Inspect(file.syntax, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name) {
				if x, ok := s.X.(*ast.Ident); ok && slices.Contains([]string{"t", "b", "f", "tb"}, x.Name) {
					violations = append(violations, file.at(n)+": a missing part must fail with a hint")
				}
			}
			return true
		})
	}
	return violations
}

func fuzzCorpora(p project) (violations []string) {
	for _, file := range p.goFiles() {
		for _, d := range file.syntax.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !file.isTest() || !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			corpus := path.Join(path.Dir(file.path), "testdata/fuzz", f.Name.Name)
			if !slices.ContainsFunc(p.paths(), func(name string) bool { return path.Dir(name) == corpus }) {
				violations = append(violations, file.at(f)+": "+f.Name.Name+" has no file in "+corpus)
			}
		}
	}
	return violations
}

func noPrivateKeys(p project) (violations []string) {
	for _, name := range p.paths() {
		if slices.Contains(strings.Split(path.Dir(name), "/"), "testdata") {
			continue
		}
		if slices.Contains([]string{".key", ".pem", ".p12"}, path.Ext(name)) {
			violations = append(violations, name+": looks like a key")
			continue
		}
		for line := range strings.SplitSeq(p.files[name], "\n") {
			if label, found := strings.CutPrefix(strings.TrimSpace(line), "-----BEGIN "); found && strings.HasSuffix(label, "PRIVATE KEY-----") {
				violations = append(violations, name+": holds a private key")
				break
			}
		}
	}
	return violations
}

// markdownTests keeps a promise like "this test would fail" from outliving the
// test.
func markdownTests(p project) (violations []string) {
	exists := map[string]bool{}
	for _, f := range p.goFiles() {
		for _, d := range f.syntax.Decls {
			if function, ok := d.(*ast.FuncDecl); ok && f.isTest() {
				exists[function.Name.Name] = true
			}
		}
	}
	for _, name := range p.paths() {
		if path.Ext(name) != ".md" {
			continue
		}
		for i, word := range strings.Split(p.files[name], "`") {
			inCode := i%2 == 1
			if inCode && isTestName(word) && !exists[word] {
				violations = append(violations, name+": "+word+" is not a test here")
			}
		}
	}
	return violations
}

func isTestName(word string) bool {
	for _, prefix := range []string{"Test", "Fuzz"} {
		if rest, ok := strings.CutPrefix(word, prefix); ok && rest != "" && 'A' <= rest[0] && rest[0] <= 'Z' && !strings.ContainsAny(rest, " .(") {
			return true
		}
	}
	return false
}

type goFile struct {
	path   string
	syntax *ast.File
	lines  *token.FileSet
}

func (f goFile) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

// isProduction tells programs and their packages from tests and their fixtures.
func (f goFile) isProduction() bool {
	return !f.isTest() && withinAny(f.path, []string{"cmd", "credential", "internal"}) && !strings.Contains(f.path, "/testdata/")
}

func (f goFile) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.lines.Position(n.Pos()).Line)
}

// goFiles returns the Go files that can be parsed; the compiler reports others.
func (p project) goFiles() (files []goFile) {
	for _, name := range p.paths() {
		if path.Ext(name) != ".go" {
			continue
		}
		lines := token.NewFileSet()
		if syntax, err := parser.ParseFile(lines, name, p.files[name], parser.ParseComments|parser.SkipObjectResolution); err == nil {
			files = append(files, goFile{name, syntax, lines})
		}
	}
	return files
}

func (p project) paths() []string { return slices.Sorted(maps.Keys(p.files)) }

// The functions below make examples.

func packagesIn(dirs ...string) (packages []listedPackage) {
	for _, dir := range dirs {
		packages = append(packages, listedPackage{ImportPath: module + "/" + dir})
	}
	return packages
}

func importing(dir, imported string) project {
	return project{packages: []listedPackage{{ImportPath: module + "/" + dir, Imports: []string{imported}}}}
}

func reaching(dir, dep string) project {
	return project{packages: []listedPackage{{ImportPath: module + "/" + dir, Deps: []string{dep}}}}
}

func sources(path, content string) project {
	return project{files: map[string]string{path: content}}
}
