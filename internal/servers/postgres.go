package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Postgres is one PostgreSQL server.
type Postgres struct {
	server
}

// StartPostgres makes a new database cluster and starts a server on it. Its superuser is postgres, without a password.
// It does not wait for the disk: what is committed survives Kill, but would not survive the machine.
func StartPostgres(ctx context.Context) (*Postgres, error) {
	return again(func() (*Postgres, error) { return startPostgres(ctx) })
}

func startPostgres(ctx context.Context) (_ *Postgres, err error) {
	initdb, err := program("postgresql", "/usr/lib/postgresql/*/bin/initdb", "/usr/pgsql-*/bin/initdb", "initdb")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p := &Postgres{server{
		name: "PostgreSQL",
		url:  "postgres://postgres@" + address(port) + "/postgres?sslmode=disable",
		quit: syscall.SIGINT, // "fast": SIGTERM waits for the clients to leave
	}}
	if err := p.prepare(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = p.Stop()
		}
	}()
	uid, gid, err := unprivileged()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(p.dir, "data")
	run := func(ctx context.Context, program string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(initdb), program), args...)
		cmd.Env, cmd.Dir = environ(), p.dir
		if uid != 0 {
			runAs(cmd, uid, gid)
		}
		return cmd
	}
	if uid != 0 {
		if err := os.Chown(p.dir, uid, gid); err != nil {
			return nil, fmt.Errorf("PostgreSQL: %w", err)
		}
	}
	out, err := run(ctx, "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C",
		"--no-sync").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL: initdb: %w\n%s", err, out)
	}
	p.command = func() *exec.Cmd {
		return run(context.Background(), "postgres", "-D", data, "-p", strconv.Itoa(port),
			"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off")
	}
	p.ready = func(_ context.Context, pid int) error {
		// The file says who runs here and, in its eighth line, whether it takes connections. One left by a server that
		// was killed has another process id.
		b, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
		if err != nil {
			return err
		}
		lines := strings.Split(string(b), "\n")
		if len(lines) < 8 || lines[0] != strconv.Itoa(pid) || strings.TrimSpace(lines[7]) != "ready" {
			return errors.New("starting up")
		}
		return nil
	}
	if err := p.Start(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// unprivileged returns the user to run as when we are root, which PostgreSQL refuses to be; else zeros.
func unprivileged() (uid, gid int, err error) {
	if os.Geteuid() != 0 {
		return 0, 0, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		var u *user.User
		if u, err = user.Lookup(name); err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		return uid, gid, errors.Join(err1, err2)
	}
	return 0, 0, fmt.Errorf("PostgreSQL: no user to run as: %w", err)
}
