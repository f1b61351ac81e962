package servers

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// SQS is one server of Amazon SQS's protocol: fauxqs, a program for Node. It accepts any credentials, and forgets its queues
// when it ends.
type SQS struct {
	server
}

// fauxqsLock names the packages that scripts/servers fetches: fauxqs and its imports.
//
//go:embed fauxqs/package-lock.json
var fauxqsLock []byte

// fauxqsFolder is where scripts/servers puts them: another lock file is another folder.
func fauxqsFolder() string {
	releases := cmp.Or(os.Getenv("DRIP_RELEASES"), "/var/tmp/drip-releases")
	return filepath.Join(releases, fmt.Sprintf("fauxqs-%x", sha256.Sum256(fauxqsLock)))
}

// fauxqsMain listens at 127.0.0.1 only, which fauxqs's own main does not. It also answers with its process id.
const fauxqsMain = `
const { buildApp } = await import(process.argv[1]);
const app = buildApp({ logger: false });
app.get("/drip/pid", async () => String(process.pid));
await app.listen({ host: "127.0.0.1", port: Number(process.argv[2]) });
`

// StartSQS starts a server without queues, and returns when it answers.
func StartSQS(ctx context.Context) (*SQS, error) {
	return again(func() (*SQS, error) { return startSQS(ctx) })
}

func startSQS(ctx context.Context) (*SQS, error) {
	node, err := program("nodejs npm", "node")
	if err != nil {
		return nil, err
	}
	module := filepath.Join(fauxqsFolder(), "node_modules/fauxqs/dist/app.js")
	if _, err := os.Stat(module); err != nil {
		return nil, fmt.Errorf("fauxqs, an SQS server, %w: scripts/servers ensure sqs", ErrMissing)
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &SQS{server{name: "SQS", url: "http://" + address(port), quit: syscall.SIGTERM}}
	s.command = func() *exec.Cmd {
		cmd := exec.Command(node, "--input-type=module", "--eval", fauxqsMain, module, strconv.Itoa(port))
		cmd.Env = environ()
		return cmd
	}
	s.ready = s.answers
	return s, s.launch(ctx)
}

func (s *SQS) answers(ctx context.Context, pid int) error {
	got, err := get(ctx, s.url+"/drip/pid")
	if err == nil && got != strconv.Itoa(pid) {
		err = fmt.Errorf("another server answers at %s", s.url)
	}
	return err
}
