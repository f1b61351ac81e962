// Package shapes is read by a test.
package shapes

import "errors"

// Limit is one.
const Limit = 3

// Kind is one.
type Kind int

const (
	Off Kind = iota // not on
	On              // not off
)

var ErrNone = errors.New("none")

// Set is one.
type Set[T comparable] map[T]bool

// Point is one.
type Point struct {
	// X is one.
	X int

	Y int

	hidden int
}

// NewPoint makes one.
func NewPoint() *Point { return &Point{} }

// Move moves.
func (p *Point) Move(dx int) error { p.hidden += dx; return nil }

// Mover moves.
type Mover interface {
	// Move moves.
	Move(dx int) error
}
