//go:build !linux

package consumequeue

import "errors"

func flushFileSystem(string) error { return errors.ErrUnsupported }
