package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// rocketVersion is the release that is measured.
const rocketVersion = "5.3.3"

type rocketMQ struct{}

func (rocketMQ) name() string { return "RocketMQ 5" }
func (rocketMQ) version() string {
	return "RocketMQ " + rocketVersion + ", " + firstLine("java", "-version")
}
func (rocketMQ) ways(workload) []string { return []string{"gRPC"} }

func (rocketMQ) durability(flushed bool) string {
	if flushed {
		return "before the answer"
	}
	return "every 500 ms"
}

// missing asks Maven's local repository for the libraries: RocketMQ has no package of Debian, but name server, broker and proxy are
// on Maven Central as libraries with a main class each.
func (rocketMQ) missing() string {
	for program, debian := range rocketPrograms {
		if why := installed(program, debian); why != "" {
			return why
		}
	}
	if os.Geteuid() != 0 {
		return "its proxy listens at every address of the machine: that it runs in a network of its own, which is made for it, wants root"
	}
	if _, err := rocketClasspath(context.Background(), "--offline"); err != nil {
		return "its libraries are not in Maven's local repository (--install gets them)"
	}
	return ""
}

// rocketPrograms are what it needs, and Debian's packages of them.
var rocketPrograms = map[string]string{"java": "default-jre-headless", "mvn": "maven"}

func (rocketMQ) warms() bool { return true }

func (rocketMQ) install(ctx context.Context) error {
	var packages []string
	for program, debian := range rocketPrograms {
		if installed(program, debian) != "" {
			packages = append(packages, debian)
		}
	}
	if len(packages) > 0 {
		if err := aptInstall(ctx, packages...); err != nil {
			return err
		}
	}
	_, err := rocketClasspath(ctx)
	return err
}

const rocketPOM = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>peers</groupId><artifactId>peers</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-proxy</artifactId><version>` + rocketVersion + `</version></dependency>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-namesrv</artifactId><version>` + rocketVersion + `</version></dependency>
  </dependencies>
</project>
`

// foundClasspath is what Maven has said; it takes seconds to ask it.
var foundClasspath struct {
	sync.Mutex
	value string
}

func rocketClasspath(ctx context.Context, flags ...string) (string, error) {
	foundClasspath.Lock()
	defer foundClasspath.Unlock()
	if foundClasspath.value != "" {
		return foundClasspath.value, nil
	}
	dir, err := os.MkdirTemp("", "leasemq-peers-maven-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	pom, out := filepath.Join(dir, "pom.xml"), filepath.Join(dir, "classpath")
	if err := os.WriteFile(pom, []byte(rocketPOM), 0o600); err != nil {
		return "", err
	}
	flags = append(flags, "--batch-mode", "--quiet", "--file", pom, "dependency:build-classpath", "-Dmdep.outputFile="+out)
	if err := command(ctx, "mvn", flags...); err != nil {
		return "", err
	}
	b, err := os.ReadFile(out)
	foundClasspath.value = strings.TrimSpace(string(b))
	return foundClasspath.value, err
}

// Where its parts listen, in the network that is theirs alone.
const (
	rocketNames = "127.0.0.1:9876"
	rocketProxy = "127.0.0.1:8081"
)

const rocketQueues = 8

// rocketFiles are the files that it is started with. The topic is made by them, as its administration tool would make it.
func rocketFiles(dir, topic string, flushed bool) map[string]string {
	flush := "ASYNC_FLUSH"
	if flushed {
		flush = "SYNC_FLUSH"
	}
	return map[string]string{
		"names.conf": "listenPort=9876\nbindAddress=127.0.0.1\nkvConfigPath=" + dir + "/names.json\n",
		"broker.conf": strings.Join([]string{
			"brokerClusterName=DefaultCluster", "brokerName=peers", "brokerId=0", "brokerIP1=127.0.0.1", "listenPort=10911",
			"storePathRootDir=" + dir + "/store", "storePathCommitLog=" + dir + "/store/commitlog",
			"flushDiskType=" + flush, "autoCreateSubscriptionGroup=true",
			"waitTimeMillsInSendQueue=10000", // else a send that waits for 200 ms is refused
			"",
		}, "\n"),
		"conf/rmq-proxy.json": `{"rocketMQClusterName":"DefaultCluster","proxyMode":"LOCAL","localServeAddr":"127.0.0.1","grpcShutdownTimeSeconds":1}` + "\n",
		"store/config/topics.json": fmt.Sprintf(`{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},"topicConfigTable":{%[1]q:`+
			`{"attributes":{"message.type":"NORMAL"},"order":false,"perm":6,"readQueueNums":%[2]d,"writeQueueNums":%[2]d,`+
			`"topicFilterType":"SINGLE_TAG","topicName":%[1]q,"topicSysFlag":0}}}`+"\n", topic, rocketQueues),
	}
}

// rocketJVM are the settings of its own start script for this Java, with a heap that fits a small machine.
var rocketJVM = []string{
	"-server", "-Xms4g", "-Xmx4g", "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m", "-XX:G1ReservePercent=25",
	"-XX:InitiatingHeapOccupancyPercent=30", "-XX:MaxDirectMemorySize=4g",
	"-XX:-OmitStackTraceInFastThrow", "-XX:+IgnoreUnrecognizedVMOptions",
	"--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
	"--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
}

// start runs the name server, and broker and proxy in one process: its "local mode".
func (rocketMQ) start(ctx context.Context, dir string, flushed bool) (_ broker, err error) {
	classpath, err := rocketClasspath(ctx, "--offline")
	if err != nil {
		return nil, err
	}
	for name, content := range rocketFiles(dir, queueName, flushed) {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			return nil, err
		}
	}
	own, err := newIsland()
	if err != nil {
		return nil, err
	}
	r := &rocketRunning{own: own}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stop())
		}
	}()
	env := []string{"ROCKETMQ_HOME=" + dir, "RMQ_PROXY_HOME=" + dir}
	java := func(addr string, jvm []string, args ...string) (err error) {
		args = slices.Concat(jvm, []string{"-Duser.home=" + dir, "-cp", classpath}, args)
		own.in(func() {
			var p *process
			if p, err = launch(ctx, addr, env, "java", args...); err == nil {
				r.parts = append(r.parts, p)
			}
		})
		return err
	}
	if err := java(rocketNames, []string{"-Xmx256m"}, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", dir+"/names.conf"); err != nil {
		return nil, err
	}
	err = java(rocketProxy, rocketJVM, "org.apache.rocketmq.proxy.ProxyStartup",
		"-n", rocketNames, "-bc", dir+"/broker.conf", "-pc", dir+"/conf/rmq-proxy.json")
	return r, err
}

type rocketRunning struct {
	own   *island
	parts []*process // in the order in which they were started
}

func (r *rocketRunning) stop() (err error) {
	for _, p := range slices.Backward(r.parts) {
		err = errors.Join(err, p.stop())
	}
	r.own.close()
	return err
}

func (r *rocketRunning) dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+rocketProxy, grpc.WithContextDialer(r.own.dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
}

// prepare waits until the proxy knows the way to the topic: if it asked the name server too early, it asks again after 20 s.
func (r *rocketRunning) prepare(ctx context.Context, queue string) error {
	c, err := r.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		code, why, err := rocketCall(rocketIdentity(ctx, "prepare"), c, "QueryRoute", queryRoute(queue))
		if err == nil && code == rocketOK {
			return nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("RocketMQ: no way to the topic: %d %s: %w", code, why, errors.Join(err, ctx.Err()))
		}
	}
}

// left is not told by this protocol.
func (r *rocketRunning) left(context.Context, string) (int64, bool, error) { return 0, false, nil }
