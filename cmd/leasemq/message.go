package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/leasemq/leasemq/client"
)

// messageLine is a message as one line of JSON. A body that is valid UTF-8 is in body, any other in
// body_base64; reading takes either.
type messageLine struct {
	Key        string            `json:"key,omitempty"`
	Tag        string            `json:"tag,omitempty"`
	OrderKey   string            `json:"order_key,omitempty"`
	UniqueKey  string            `json:"unique_key,omitempty"`
	Properties map[string]string `json:"properties,omitempty"`
	Body       *string           `json:"body,omitempty"`
	BodyBase64 []byte            `json:"body_base64,omitempty"`
}

// storedLine is a message that the broker has, as pop and peek print it.
type storedLine struct {
	Topic  string    `json:"topic"`
	Queue  int       `json:"queue"`
	Offset uint64    `json:"offset"`
	ID     string    `json:"id"`
	BornAt time.Time `json:"born_at"`

	Attempt       int    `json:"attempt,omitempty"`
	Token         string `json:"token,omitempty"` // as a string: it may not fit a double
	Failures      int    `json:"failures,omitempty"`
	Expiries      int    `json:"expiries,omitempty"`
	SessionLosses int    `json:"session_losses,omitempty"`

	messageLine
}

// parseMessage reads one line of --format jsonl.
func parseMessage(line []byte) (*client.Message, error) {
	var in messageLine
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&in); err != nil {
		return nil, err
	}
	if decoder.More() {
		return nil, errors.New("more than one JSON value")
	}
	m := &client.Message{Key: in.Key, Tag: in.Tag, OrderKey: in.OrderKey, UniqueKey: in.UniqueKey, Body: in.BodyBase64}
	if in.Body != nil {
		if in.BodyBase64 != nil {
			return nil, errors.New("both body and body_base64")
		}
		m.Body = []byte(*in.Body)
	}
	for name, value := range in.Properties {
		m.Properties = append(m.Properties, client.Property{Name: name, Value: value})
	}
	slices.SortFunc(m.Properties, func(a, b client.Property) int { return strings.Compare(a.Name, b.Name) })
	return m, nil
}

// showMessage is m, whose body has been read.
func showMessage(m *client.StoredMessage, body []byte) storedLine {
	line := storedLine{
		Topic: m.Topic, Queue: m.Queue, Offset: m.Offset, ID: m.ID.String(), BornAt: m.BornAt.UTC(),
		messageLine: messageLine{Key: m.Key(), Tag: m.Tag(), OrderKey: m.OrderKey(), UniqueKey: m.UniqueKey()},
	}
	if properties := m.Properties(); len(properties) > 0 {
		line.Properties = make(map[string]string, len(properties))
		for _, p := range properties {
			line.Properties[p.Name] = p.Value
		}
	}
	if utf8.Valid(body) {
		text := string(body)
		line.Body = &text
	} else {
		line.BodyBase64 = body
	}
	return line
}

// showDelivery is showMessage with the lease.
func showDelivery(d *client.Delivery, body []byte) storedLine {
	line := showMessage(&d.StoredMessage, body)
	line.Attempt, line.Token = d.Attempt, fmt.Sprint(d.Token)
	line.Failures, line.Expiries, line.SessionLosses = d.Failures, d.Expiries, d.SessionLosses
	return line
}
