package cli_test

import (
	"github.com/drip-go/drip/cli"

	_ "github.com/drip-go/drip/storage/redis"
)

// The whole of a program: the command, with the storages that are imported.
func ExampleMain() {
	cli.Main()
}
