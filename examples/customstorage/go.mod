module github.com/drip-go/drip/examples/customstorage

go 1.25.0

require (
	github.com/drip-go/drip v0.0.0
	go.etcd.io/bbolt v1.4.3
)

require golang.org/x/sys v0.30.0 // indirect

replace github.com/drip-go/drip => ../../
