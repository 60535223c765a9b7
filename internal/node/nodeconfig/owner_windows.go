package nodeconfig

import "io/fs"

func ownerOf(fs.FileInfo) int { return 0 }
