// Drip is the command of package cli, with the storages of this repository. "drip help" lists its commands.
package main

import "github.com/drip-go/drip/cli"

func main() { cli.Main() }
