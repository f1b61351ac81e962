package cli

import (
	"context"
	"io"
	"strings"

	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/storage"
	_ "github.com/drip-go/drip/storage/postgres"
	_ "github.com/drip-go/drip/storage/redis"
)

// open opens the storage of a URL argument. The caller must call close.
func open(ctx context.Context, arg string) (s storage.Storage, close func(), err error) {
	url, err := address(arg)
	if err != nil {
		return nil, nil, err
	}
	if strings.HasPrefix(strings.ToLower(url), "memory:") {
		return nil, nil, usagef("memory: is in the process that uses it; nobody else can look into it")
	}
	s, err = storage.Open(ctx, url)
	if err != nil {
		return nil, nil, usageError{err}
	}
	return s, func() {
		if c, ok := s.(io.Closer); ok {
			_ = c.Close() // nothing is under way
		}
	}, nil
}

// report is an entities.Report as the command prints it.
type report struct{ *entities.Report }
