package broker

import (
	"cmp"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasemq/leasemq/consumequeue"
	"github.com/leasemq/leasemq/mmaplog"
	"github.com/leasemq/leasemq/protocol"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random histories, as a failed run has printed it")

// TestLockstep runs random histories through the engine and through the model of the lease rules
// (model_test.go), holds every answer of one against the other, and then the two states.
//
// Several histories, one after the other, share an engine, with topics and groups of their own: opening one takes
// longer than a history. A seed repeats all histories of one engine.
func TestLockstep(t *testing.T) {
	engines := 160
	switch {
	case *seedFlag != 0:
		engines = 1
	case testing.Short(), raceDetector:
		engines = 20
	}
	seed := cmp.Or(*seedFlag, uint64(time.Now().UnixNano()))
	var mu sync.Mutex
	met := map[string]int{}
	t.Run("lanes", func(t *testing.T) {
		for lane := range min(engines, 2) {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				for i := lane; i < engines; i += 2 {
					d := newLockstep(t, seed+uint64(i))
					for range 10 {
						d.history()
					}
					d.close()
					mu.Lock()
					for what, n := range d.met {
						met[what] += n
					}
					mu.Unlock()
				}
			})
		}
	})
	for _, what := range slices.Sorted(maps.Keys(met)) {
		t.Logf("%7d %s", met[what], what)
	}
	if engines < 100 || t.Failed() {
		return
	}
	for _, what := range []string{ // what is rare must be met, or nothing is proved
		"a pop repeated", "a pop that waited OK", "a pop that waited EMPTY", "a pop that waited SUPERSEDED NONE",
		"a pop that waited SESSION_NOT_FOUND SESSION_EXPIRED", "a receipt reclaimed OK NONE", "late ack",
		"ack of a grant lost in a crash", "change of a grant lost in a crash", "change of an entry RENEW_LIMIT NONE",
		"change of an entry STALE ORDINAL", "pop LIMIT_EXCEEDED NONE", "restarts that lost something",
	} {
		if met[what] == 0 {
			t.Errorf("not met: %s", what)
		}
	}
}

// lockstep is one engine, its model, and the clients, which are played by the test.
type lockstep struct {
	*rig
	seed uint64
	rnd  *rand.Rand
	m    *model
	said []string // what has happened, in words

	conns   []*conn
	clients []*client
	topics  []string
	groups  []string
	// receipts is all that were ever seen in this history, means what they stand for.
	receipts []*receipt
	means    map[string]modelReceipt
	bytesOf  map[modelReceipt]string
	parked   []*parked
	// saved is what the log says at some of its ends: where a power loss may cut it.
	saved []saved
	n     int            // of the history
	names int            // for bodies and nonces
	met   map[string]int // what has been met how often
}

// client is one consumer id and the session that it thinks it has.
type client struct {
	group, consumer string
	session         uint64
	register        protocol.RegisterRequest // its newest
	slots           [3]clientSlot
}

type clientSlot struct {
	sequence uint64
	lost     bool // the answer of the newest sequence
	request  protocol.PopRequest
}

type receipt struct {
	bytes   []byte
	session uint64
	ordinal uint32
}

// parked is a pop that waits, on a connection.
type parked struct {
	p    *modelPop
	c    *conn
	who  *client
	lost bool
}

type saved struct {
	end uint64
	m   *model
}

// quickFS is the machine's file system without the waiting for the disk: a loss of power is played by cutting the log.
type quickFS struct{ mmaplog.FS }

type quickFile struct{ mmaplog.File }

func (f quickFS) OpenFile(name string, flag int, perm fs.FileMode) (mmaplog.File, error) {
	file, err := f.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return quickFile{file}, nil
}

func (quickFS) SyncDir(string) error { return nil }
func (quickFile) Sync() error        { return nil }
func (quickFile) Datasync() error    { return nil }

func newLockstep(t *testing.T, seed uint64) *lockstep {
	d := &lockstep{seed: seed, rnd: rand.New(rand.NewPCG(seed, 3)), m: newModel(), met: map[string]int{}}
	d.m.leasesPerSession = one(d.rnd, 6, 10, 10, 20)
	d.m.remembers = func(r modelReceipt) bool {
		slot, ok := d.e.fold.leases.SlotOf(r.sub)
		return ok && d.e.fold.leases.Known(slot, r.at.queue, r.at.offset)
	}
	d.rig = newRig(t, func(o *Options) {
		o.SegmentBytes, o.RingBytes, o.Seed, o.FS = 64<<10, 512<<10, seed, quickFS{mmaplog.OS}
		o.Verify = d.rnd.IntN(8) == 0
		o.Limits.MaxBodyBytes, o.Limits.LeasesPerSession = 1000, d.m.leasesPerSession
	})
	d.began()
	d.tick(1) // what happens at the lease clock's zero is told without its time
	return d
}

// began is after an engine has started.
func (d *lockstep) began() {
	d.conns = []*conn{d.dial(), d.dial()}
	d.m.epoch = d.e.Epoch()
	if !d.o.Verify {
		d.e.ticking.indexedMs = math.MaxInt64 / 2 // the index stays in memory: its files would be most of the work
	}
	d.say("the broker starts, epoch %d", d.m.epoch)
	d.tick(0)
}

func (d *lockstep) close() {
	if err := d.e.Close(); err != nil {
		d.t.Error(err)
	}
	d.e = nil
	if err := os.RemoveAll(d.o.Dir); err != nil {
		d.t.Error(err)
	}
}

func (d *lockstep) say(format string, args ...any) {
	d.said = append(d.said, fmt.Sprintf("%d ms: ", d.m.fineMs)+fmt.Sprintf(format, args...))
}

func (d *lockstep) fail(format string, args ...any) {
	d.t.Helper()
	d.t.Fatalf("seed %d, history %d: %s\nwhat had happened:\n%s", d.seed, d.n, fmt.Sprintf(format, args...),
		strings.Join(d.said[max(0, len(d.said)-30):], "\n"))
}

// same holds what the broker says against what it should say.
func (d *lockstep) same(what string, got, want any) {
	if !reflect.DeepEqual(got, want) {
		d.fail("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

// history is one history, from new topics and groups until they are deleted.
func (d *lockstep) history() {
	d.n++
	d.said = d.said[max(0, len(d.said)-1):]
	d.receipts, d.means, d.bytesOf = nil, map[string]modelReceipt{}, map[modelReceipt]string{}
	d.setUp()
	d.saved = nil
	d.save()
	for range 60 + d.rnd.IntN(90) {
		d.step()
		if d.met["steps"]++; d.met["steps"]%4 == 0 {
			d.compare()
		}
	}
	if d.rnd.IntN(4) == 0 {
		d.drain()
	}
	d.compare()
	d.tearDown()
}

func (d *lockstep) setUp() {
	d.topics = []string{fmt.Sprintf("one-%d", d.n), fmt.Sprintf("three-%d", d.n)}
	for i, queues := range []uint16{1, 3} {
		d.conns[0].ok(protocol.OpCreateTopic, 0, &protocol.CreateTopicRequest{Name: d.topics[i], Queues: queues}, nil)
		d.m.topics[d.topics[i]] = &modelTopic{make([][]modelMessage, queues)}
	}
	d.groups, d.clients = nil, nil
	for i := range 2 {
		name := fmt.Sprintf("g%d-%d", i, d.n)
		rules := protocol.GroupRules{
			InvisibleMs: 2000, MaxInvisibleMs: uint32(one(d.rnd, 5000, 20_000, protocol.MaxInvisibleMs)),
			SessionTimeoutMs: uint32(one(d.rnd, 1500, 4000)), HeartbeatMs: 500,
			MaxRenewals: uint16(one(d.rnd, 1, 3, 3, int(protocol.UnlimitedRenewals))), MaxTotalMs: uint64(one(d.rnd, 0, 0, 6000)),
			BackOff:      one(d.rnd, protocol.BackOffNone, protocol.BackOffFixed, protocol.BackOffFixed, protocol.BackOffLevels),
			BackOffMinMs: uint32(one(d.rnd, 300, 1700)), BackOffMaxMs: 10_000, MaxInFlight: uint32(one(d.rnd, 4, 10_000, 10_000)),
		}.WithDefaults()
		d.conns[0].ok(protocol.OpCreateGroup, 0, &protocol.GroupRequest{Name: name, Rules: rules}, nil)
		d.m.groups[name] = &modelGroup{rules: rules, subs: map[string]*modelSub{}}
		d.groups = append(d.groups, name)
		for j := range 3 {
			d.clients = append(d.clients, &client{group: name, consumer: fmt.Sprintf("c%d", j)})
		}
	}
}

// tearDown ends all sessions and deletes all that the history has made.
func (d *lockstep) tearDown() {
	for _, s := range d.m.sessions {
		if s.ended == protocol.ReasonNone {
			d.conns[0].ok(protocol.OpUnregister, 0, &protocol.UnregisterRequest{Session: s.id}, nil)
		}
	}
	for _, c := range d.conns {
		c.read()
		clear(c.answers)
	}
	for _, name := range d.groups {
		d.conns[0].ok(protocol.OpDeleteGroup, 0, &protocol.NameRequest{Name: name}, nil)
	}
	for _, name := range d.topics {
		d.conns[0].ok(protocol.OpDeleteTopic, 0, &protocol.NameRequest{Name: name}, nil)
	}
	d.parked = nil
	d.m.topics, d.m.groups = map[string]*modelTopic{}, map[string]*modelGroup{}
	d.m.sessions, d.m.parked, d.m.refused = map[uint64]*modelSession{}, nil, map[uint64]modelRefusal{}
}

func one[T any](rnd *rand.Rand, of ...T) T { return of[rnd.IntN(len(of))] }

func (d *lockstep) step() {
	switch p := d.rnd.IntN(1000); {
	case p < 130:
		d.stepSend()
	case p < 400:
		d.stepPop()
	case p < 520:
		d.stepAck()
	case p < 650:
		d.stepChange()
	case p < 850:
		d.stepTime()
	case p < 870:
		d.beat(one(d.rnd, d.clients...))
	case p < 945:
		d.stepRegister(one(d.rnd, d.clients...))
	case p < 960:
		d.stepUnregister(one(d.rnd, d.clients...))
	case p < 994:
		d.stepBreak()
	default:
		d.stepCrash()
	}
	if d.rnd.IntN(3) == 0 {
		d.save()
	}
}

// The log, and what comes of itself

// commit waits until the log has written everything and the loop has seen it.
func (d *lockstep) commit() {
	began := time.Now()
	for tries := 0; ; tries++ {
		if d.e.Log().Committed() == d.e.Log().Appended() {
			d.loop.Wake()
			if d.e.Log().Committed() == d.e.Log().Appended() && !d.e.todo.Load() {
				return
			}
		}
		if tries < 200 {
			runtime.Gosched()
			continue
		}
		d.e.Log().Kick()
		d.await()
		if time.Since(began) > 10*time.Second {
			d.fail("the log does not commit (%v)", d.e.Err())
		}
	}
}

// settled waits until the broker has done all that the model says it does by itself: it answers pops that have
// waited. Their answers are held against the model in the order in which they were decided.
func (d *lockstep) settled() {
	for deadline := time.Now().Add(5 * time.Second); ; d.await() { // parts of the index may have to be loaded
		d.commit()
		d.answered()
		late := d.m.overdue()
		if late == nil && len(d.m.refused) == 0 {
			return
		}
		if time.Now().After(deadline) {
			d.fail("waiting pops that should have been answered: %+v, refused %v", late, d.m.refused)
		}
	}
}

func (d *lockstep) answered() {
	type came struct {
		*parked
		a     answer
		pop   protocol.PopAnswer
		token uint64
	}
	var list []came
	d.parked = slices.DeleteFunc(d.parked, func(w *parked) bool {
		a, ok := w.c.peekAnswer(w.p.request)
		if !ok {
			return false
		}
		delete(w.c.answers, w.p.request)
		x := came{parked: w, a: a}
		switch a.Status {
		case protocol.OK:
			x.pop = d.popAnswer(a)
			x.token = x.pop.Rows[0].Token
		case protocol.Empty:
			x.pop = d.popAnswer(a)
			x.token = 1<<64 - 1
		}
		list = append(list, x)
		return true
	})
	slices.SortStableFunc(list, func(a, b came) int { return cmp.Compare(a.token, b.token) })
	for i := range list {
		x := &list[i]
		if no, ok := d.m.refused[x.p.request]; ok {
			delete(d.m.refused, x.p.request)
			d.refused("a pop that waited", x.a, no)
			continue
		}
		d.say("the pop %d that waited is answered", x.p.request)
		d.m.unpark(x.p)
		switch x.a.Status {
		case protocol.OK:
			d.met["a pop that waited OK"]++
			d.granted(x.p, x.who, &x.pop, x.lost)
		case protocol.Empty:
			if x.p.dueMs > d.m.nowMs || d.m.available(x.p) > 0 {
				d.fail("EMPTY, %d to be had, due at %d", d.m.available(x.p), x.p.dueMs)
			}
			d.met["a pop that waited EMPTY"]++
			d.empty(x.p, &x.pop)
		default:
			d.fail("a pop that waited is answered %s", x.a.Status)
		}
	}
}

// call sends a request and waits for its answer.
func (d *lockstep) ask(code protocol.Opcode, body interface{ Append([]byte) []byte }) answer {
	return one(d.rnd, d.conns...).call(code, 0, body)
}

// refused holds an answer that refuses a whole request against no; it is false when nothing is to be refused.
func (d *lockstep) refused(what string, a answer, no modelRefusal) bool {
	if no.status == protocol.OK {
		if a.Status != protocol.OK && a.Status != protocol.Empty {
			var why protocol.ErrorBody
			_ = why.Decode(a.body)
			d.fail("%s: %s %s", what, a.Status, why.Message)
		}
		return false
	}
	var why protocol.ErrorBody
	if a.Status != protocol.OK && a.Status != protocol.Empty {
		if err := why.Decode(a.body); err != nil {
			d.fail("%s: %v", what, err)
		}
	}
	d.met[fmt.Sprintf("%s %s %s", what, no.status, no.reason)]++
	if no.status == protocol.Superseded {
		why.Detail = 0
	}
	d.same(what, modelRefusal{a.Status, why.Reason, why.Detail}, no)
	return true
}

// Time

func (d *lockstep) stepTime() {
	if d.rnd.IntN(4) == 0 { // without a tick
		ms := int64(d.rnd.IntN(300))
		d.move(ms)
		d.m.fineMs = min(d.m.fineMs+ms, d.m.nowMs+maxStepMs)
		return
	}
	longest := int64(one(d.rnd, 20, 250, 250, 700))
	beating := d.rnd.IntN(3) > 0
	for range 1 + d.rnd.IntN(6) {
		if beating {
			for _, x := range d.clients {
				if d.rnd.IntN(3) == 0 {
					d.beat(x)
				}
			}
		}
		d.tick(d.rnd.Int64N(longest))
	}
}

func (d *lockstep) move(ms int64) {
	d.clock.mono += time.Duration(ms) * time.Millisecond
	d.clock.wall = d.clock.wall.Add(time.Duration(ms) * time.Millisecond)
}

// tick moves the clocks by ms, of which the lease clock takes what it may, and ticks.
func (d *lockstep) tick(ms int64) {
	d.move(ms)
	d.e.Tick()
	d.m.tick(min(d.m.fineMs+ms, d.m.nowMs+maxStepMs))
	d.say("tick %d", d.m.nowMs)
	d.same("the lease clock", d.e.lease.now(), d.m.nowMs)
	d.loop.Wake()
	d.settled()
}

// Losing connections, and the broker

// stepBreak breaks a connection: what waits on it is gone, sessions and leases are not.
func (d *lockstep) stepBreak() {
	i := d.rnd.IntN(len(d.conns))
	c := d.conns[i]
	d.say("a connection breaks")
	d.loop.Close(c)
	d.conns[i] = d.dial()
	d.parked = slices.DeleteFunc(d.parked, func(w *parked) bool {
		if w.c == c {
			d.m.unpark(w.p)
			return true
		}
		return false
	})
	d.settled()
}

// save notes what the log says at its end.
func (d *lockstep) save() {
	d.commit()
	if d.rnd.IntN(10) == 0 { // the next start begins with it, and no loss of power takes what lies before
		if _, err := d.e.Snapshot(); err != nil {
			d.fail("no snapshot: %v", err)
		}
		d.met["snapshots"]++
		d.saved = d.saved[:0]
	}
	if d.saved = append(d.saved, saved{d.e.Log().Appended(), d.m.clone()}); len(d.saved) > 12 {
		d.saved = d.saved[1:]
	}
}

// stepCrash kills the broker and starts it again: as a kill does, which loses nothing, or as a loss of power does,
// which takes the newest part of the log. Clients keep what they have.
func (d *lockstep) stepCrash() {
	d.save()
	d.e.Abort()
	d.met["restarts"]++
	before := d.saved[len(d.saved)-1]
	if d.rnd.IntN(2) == 0 {
		before = one(d.rnd, d.saved...)
		(&history{rig: d.rig}).cut(before.end)
		d.met["restarts that lost something"]++
		d.say("the power is lost, and with it the log behind %d: what was since %d ms", before.end, before.m.nowMs)
	} else {
		d.say("the broker is killed")
	}
	d.parked, d.m = nil, before.m.clone()
	d.open()
	d.warm()
	nowMs := d.e.lease.now()
	if late := d.m.nowMs - nowMs; late < 0 || late >= clockEveryMs+maxStepMs && d.m.busy() {
		d.fail("the lease clock goes on at %d", nowMs)
	}
	epoch := max(d.m.epoch+1, uint32(d.clock.wall.Unix()))
	if d.e.Epoch() != epoch {
		d.fail("epoch %d, not %d", d.e.Epoch(), epoch)
	}
	d.m.restart(nowMs, epoch)
	d.began()
	d.saved = nil
	d.save()
}

// warm has the whole index in memory: the model knows no message that is there and has to be loaded first.
func (d *lockstep) warm() {
	resident := func() bool {
		d.e.enter()
		defer d.e.leave()
		all := true
		for i := range d.e.queueRun {
			if q := d.e.queueRun[i].index; q != nil {
				for offset := q.Begin(); offset < q.End(); offset += consumequeue.BlockEntries {
					_, ok := q.Block(offset)
					all = all && ok
				}
			}
		}
		return all
	}
	for began := time.Now(); !resident(); d.await() {
		if time.Since(began) > 10*time.Second {
			d.fail("the index is not loaded")
		}
	}
}

// busy tells whether something runs by the clock.
func (m *model) busy() bool {
	for _, s := range m.sessions {
		if s.ended == protocol.ReasonNone {
			return true
		}
	}
	return false
}
