//go:build !linux

package bench

import "errors"

// processOf: what another process has used is only looked up on Linux.
func processOf(int) (processUse, error) { return processUse{}, errors.ErrUnsupported }
