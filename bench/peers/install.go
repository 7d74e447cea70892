package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
)

// policyFile is what Debian asks before it starts a service that it has just installed (policy-rc.d of the package init-system-helpers).
const policyFile = "/usr/sbin/policy-rc.d"

// forbidden is the answer that a service must not be started.
const forbidden = "#!/bin/sh\nexit 101\n"

// aptInstall installs packages of Debian without having their services started: they would listen at addresses of this machine, and
// share it with what is measured.
func aptInstall(ctx context.Context, packages ...string) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("there is no apt-get")
	}
	if os.Geteuid() != 0 {
		return errors.New("apt-get wants root")
	}
	allow, err := forbidServices(policyFile)
	if err != nil {
		return err
	}
	err = command(ctx, "apt-get", "update")
	if err == nil {
		err = command(ctx, "apt-get", append([]string{"install", "--yes", "--no-install-recommends"}, packages...)...)
	}
	return errors.Join(err, allow())
}

// forbidServices writes the policy that no service is started; allow removes it. Where there is a policy already it counts, and stays.
func forbidServices(path string) (allow func() error, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return func() error { return nil }, nil
	}
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString(forbidden)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return func() error { return os.Remove(path) }, nil
}

// command runs a command, and fails with the end of what it wrote.
func command(ctx context.Context, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	fmt.Fprintln(os.Stderr, "peers:", c)
	out, err := c.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%s: %w: %s", name, err, strings.Join(lines[max(0, len(lines)-3):], "; "))
	}
	return nil
}
