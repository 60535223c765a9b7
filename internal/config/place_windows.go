package config

import "io/fs"

// fileID: Windows tells it of open files alone, and place opens none. Names are compared.
func fileID(fs.FileInfo) (id string, ok bool) { return "", false }

// checkWritableDirectory: Windows tells it only by an attempt, and a check changes nothing.
func checkWritableDirectory(string) error { return nil }
