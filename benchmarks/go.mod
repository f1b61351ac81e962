module github.com/drip-go/drip/benchmarks

go 1.25.0

require github.com/drip-go/drip v0.0.0

require golang.org/x/time v0.14.0

replace github.com/drip-go/drip => ../
