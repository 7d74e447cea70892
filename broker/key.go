package broker

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/leasemq/leasemq/codec"
	"github.com/leasemq/leasemq/lease"
)

// keyFile holds the secret under which receipts are made, and behind it its CRC-32C. It is part of every
// backup: with another key the receipts that consumers hold are worth nothing.
const keyFile = "receipt.key"

// loadKey reads the receipt key, or makes it when the log is empty.
func loadKey(dir string, logEmpty bool) (lease.Key, error) {
	path := filepath.Join(dir, keyFile)
	b, err := os.ReadFile(path)
	switch {
	case err == nil && len(b) == lease.KeyBytes+4 &&
		codec.Checksum(0, b[:lease.KeyBytes]) == binary.LittleEndian.Uint32(b[lease.KeyBytes:]):
		return lease.NewKey([lease.KeyBytes]byte(b)), nil
	case err == nil:
		return lease.Key{}, fmt.Errorf("receipt key %s is damaged: restore it from a backup", path)
	case !errors.Is(err, fs.ErrNotExist):
		return lease.Key{}, fmt.Errorf("receipt key: %w", err)
	case !logEmpty:
		return lease.Key{}, fmt.Errorf("receipt key %s is missing beside a log that is not empty: "+
			"without it every receipt that consumers hold is void; restore it from a backup", path)
	}
	secret := make([]byte, lease.KeyBytes)
	if _, err := rand.Read(secret); err != nil {
		return lease.Key{}, fmt.Errorf("receipt key: %w", err)
	}
	if err := writeDurably(path, binary.LittleEndian.AppendUint32(secret, codec.Checksum(0, secret))); err != nil {
		return lease.Key{}, fmt.Errorf("receipt key: %w", err)
	}
	return lease.NewKey([lease.KeyBytes]byte(secret)), nil
}

// writeDurably makes a file appear whole or not at all: temporary file, fsync, rename, fsync of the
// directory.
func writeDurably(path string, b []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}
