package netserver

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// gnetLog passes gnet's log lines on to slog. Any goroutine may use it.
//
// It keeps the last errors: an engine that ends by itself returns nil from Run and tells the reason only here, the
// cause first and then what follows from it.
type gnetLog struct {
	log *slog.Logger

	mu     sync.Mutex
	errors []string
}

const keptErrors = 4

func (g *gnetLog) Debugf(format string, args ...any) { g.log.Debug(gnetLine(format, args)) }
func (g *gnetLog) Infof(format string, args ...any)  { g.log.Debug(gnetLine(format, args)) }
func (g *gnetLog) Warnf(format string, args ...any)  { g.log.Warn(gnetLine(format, args)) }

func (g *gnetLog) Errorf(format string, args ...any) {
	line := gnetLine(format, args)
	g.log.Error(line)
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.errors) == keptErrors {
		g.errors = append(g.errors[:0], g.errors[1:]...)
	}
	g.errors = append(g.errors, line)
}

// Fatalf does not end the process: that is for the broker to decide.
func (g *gnetLog) Fatalf(format string, args ...any) { g.Errorf(format, args...) }

// lastErrors is what gnet complained of last.
func (g *gnetLog) lastErrors() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.errors) == 0 {
		return "gnet gave no reason"
	}
	return strings.Join(g.errors, "; ")
}

func gnetLine(format string, args []any) string { return "gnet: " + fmt.Sprintf(format, args...) }
