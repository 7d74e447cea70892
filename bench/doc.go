// Package bench makes load for a broker and reports what it took: Execute runs a Workload, of which Workloads lists those that
// there are; and Crash, Rounds, Restart and Handover kill brokers and workers and keep a ledger of what was promised.
//
// The broker is always another process, reached over TCP: one that runs already, or a Child, started from
// this very binary on a directory of its own. A generator in the broker's process would measure a scheduler
// that serves both.
//
// Generators are cheap so that they measure the broker: a request is encoded once and sent again and again, the
// memory of answers is used again, a latency costs two clock readings a batch.
package bench
