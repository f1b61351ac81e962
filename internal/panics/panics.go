// Package panics turns panics into errors.
package panics

import "fmt"

// Caught calls f and returns a panic of f, such as one of a user's storage, as an error. A panic in a goroutine that nobody
// recovers ends the process.
func Caught(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return f()
}
