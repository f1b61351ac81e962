module github.com/drip-go/drip/examples/amqp10

go 1.25.0

require (
	github.com/Azure/go-amqp v1.7.0
	github.com/drip-go/drip v0.0.0
	github.com/drip-go/drip/adapters/amqp10 v0.0.0
	github.com/rabbitmq/amqp091-go v1.14.0
)

replace (
	github.com/drip-go/drip => ../../
	github.com/drip-go/drip/adapters/amqp10 => ../../adapters/amqp10
)
