package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	// helperName is what follows docker-credential- in the program's name.
	helperName = "pullpass"

	// maxConfigSize is in bytes.
	maxConfigSize = 1 << 20
)

// configure writes into the client's config.json that this helper answers for
// the registries. All else in the file stays as it is, and clients that read it
// meanwhile see the old or the new one.
func configure(getenv func(string) string) ([]byte, error) {
	s, err := parseSettings(getenv)
	if err != nil {
		return nil, err
	}
	dir := getenv("DOCKER_CONFIG")
	if dir == "" {
		home := getenv("HOME")
		if home == "" {
			return nil, errors.New("HOME and DOCKER_CONFIG: empty; set DOCKER_CONFIG to the directory of the client's config.json")
		}
		dir = filepath.Join(home, ".docker")
	}
	path := filepath.Join(dir, "config.json")
	config, mode, err := readConfig(path)
	if err != nil {
		return nil, err
	}
	if err := addHelper(config, s.registries); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	content, err := json.MarshalIndent(config, "", "\t") // as docker does
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := replace(path, append(content, '\n'), mode); err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%s: %s answers for %s\n", path, helperName, strings.Join(s.registries, ", ")), nil
}

// readConfig returns the members of the file, none if it is not there.
func readConfig(path string) (config map[string]json.RawMessage, mode fs.FileMode, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return map[string]json.RawMessage{}, 0o600, nil
	case err != nil:
		return nil, 0, err
	case !info.Mode().IsRegular(): // opening a pipe would wait for its writer
		return nil, 0, fmt.Errorf("%s: not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = file.Close() }() // nothing was written
	content, err := io.ReadAll(io.LimitReader(file, maxConfigSize+1))
	switch {
	case err != nil:
		return nil, 0, err
	case len(content) > maxConfigSize:
		return nil, 0, fmt.Errorf("%s: longer than %d KiB", path, maxConfigSize>>10)
	}
	// It may hold passwords, of which the errors of encoding/json show pieces.
	if json.Unmarshal(content, &config) != nil || config == nil {
		return nil, 0, fmt.Errorf("%s: not one JSON object", path)
	}
	return config, info.Mode().Perm(), nil
}

func addHelper(config map[string]json.RawMessage, registries []string) error {
	helpers := map[string]string{}
	if entry, found := config["credHelpers"]; found && json.Unmarshal(entry, &helpers) != nil {
		return errors.New("credHelpers: not a JSON object of strings")
	}
	if helpers == nil { // null, which clients take for an empty one
		helpers = map[string]string{}
	}
	for _, registry := range registries {
		for _, name := range namesOf(registry) {
			if other := helpers[name]; other != "" && other != helperName {
				return fmt.Errorf("credHelpers: %q is another helper's already, %.100q; take it out if that one is to go", name, other)
			}
			helpers[name] = helperName
		}
	}
	entry, err := json.Marshal(helpers)
	config["credHelpers"] = entry
	return err
}

// replace swaps the file in one step. A symbolic link goes on leading to it.
func replace(path string, content []byte, mode fs.FileMode) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".config.json-*")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Chmod(mode), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
